#include "formats/zarr/codecs.h"

#include <blosc.h>
#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

namespace ckpt::formats {

namespace {

Unexpected damaged(const char* codec, const std::string& why) {
  return fail(Code::kAnswerNo, "", std::string("damaged ") + codec + " data: " + why);
}
constexpr const char* kWrongSize = "it does not hold exactly one chunk";

Result<void> decompress_blosc(ByteSpan encoded, MutableByteSpan out) {
  size_t size = 0;
  // Checks the header against the length that is there: blosc itself trusts the compressed size in it.
  if (encoded.size() < BLOSC_MIN_HEADER_LENGTH || blosc_cbuffer_validate(encoded.data(), encoded.size(), &size) != 0) {
    return damaged("blosc", "bad header");
  }
  if (size != out.size()) return damaged("blosc", kWrongSize);
  int n = blosc_decompress_ctx(encoded.data(), out.data(), out.size(), 1);
  if (n < 0 || static_cast<size_t>(n) != out.size()) return damaged("blosc", "it does not decode");
  return {};
}

Result<void> decompress_zstd(ByteSpan encoded, MutableByteSpan out) {
  size_t n = ZSTD_decompress(out.data(), out.size(), encoded.data(), encoded.size());
  if (ZSTD_isError(n) != 0) return damaged("zstd", ZSTD_getErrorName(n));
  if (n != out.size()) return damaged("zstd", kWrongSize);
  return {};
}

Result<void> decompress_deflate(ByteSpan encoded, MutableByteSpan out, bool gzip) {
  const char* name = gzip ? "gzip" : "zlib";
  z_stream stream{};
  if (inflateInit2(&stream, gzip ? 15 + 16 : 15) != Z_OK) return fail(Code::kNoRoom, "", "cannot start zlib");
  std::byte beyond{};  // one byte more than wanted shows a stream that is too long
  size_t in_at = 0, out_at = 0;
  bool overflow = false;
  int state = Z_OK;
  constexpr size_t kStep = 1 << 30;  // zlib counts in 32 bits
  while (state == Z_OK) {
    size_t in = std::min(kStep, encoded.size() - in_at);
    size_t room = std::min(kStep, out.size() - out_at);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(encoded.data() + in_at));
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = reinterpret_cast<Bytef*>(room > 0 ? out.data() + out_at : &beyond);
    stream.avail_out = static_cast<uInt>(std::max<size_t>(room, 1));
    state = inflate(&stream, Z_NO_FLUSH);
    in_at += in - stream.avail_in;
    size_t made = std::max<size_t>(room, 1) - stream.avail_out;
    overflow = room == 0 && made > 0;
    if (overflow) break;
    out_at += made;
    if (in == stream.avail_in && made == 0) break;
  }
  inflateEnd(&stream);
  if (overflow) return damaged(name, kWrongSize);
  if (state != Z_STREAM_END) return damaged(name, "it does not decode");
  if (out_at != out.size()) return damaged(name, kWrongSize);
  return {};
}

/// numcodecs puts the decoded size as a 32-bit number before one LZ4 block.
Result<void> decompress_lz4(ByteSpan encoded, MutableByteSpan out) {
  ByteReader reader(encoded);
  auto size = reader.read<uint32_t>();
  if (!size) return damaged("lz4", "truncated");
  if (*size != out.size() || *size > LZ4_MAX_INPUT_SIZE) return damaged("lz4", kWrongSize);
  if (reader.remaining() > INT32_MAX) return damaged("lz4", "too long");
  int n = LZ4_decompress_safe(reinterpret_cast<const char*>(encoded.data() + 4), reinterpret_cast<char*>(out.data()),
                              static_cast<int>(reader.remaining()), static_cast<int>(out.size()));
  if (n < 0 || static_cast<size_t>(n) != out.size()) return damaged("lz4", "it does not decode");
  return {};
}

void swap_bytes(MutableByteSpan data, size_t unit) {
  for (size_t i = 0; i + unit <= data.size(); i += unit) std::reverse(data.begin() + i, data.begin() + i + unit);
}

/// Column-major `from` to row-major `to`: the odometer follows `to`, the place in `from` moves along.
void to_row_major(const tensor::Shape& shape, size_t item, ByteSpan from, MutableByteSpan to) {
  const size_t rank = shape.size();
  std::vector<size_t> step(rank), at(rank, 0);
  size_t stride = item;
  for (size_t i = 0; i < rank; ++i) {
    step[i] = stride;
    stride *= shape[i];
  }
  size_t place = 0;
  for (size_t done = 0; done < to.size(); done += item) {
    std::memcpy(to.data() + done, from.data() + place, item);
    for (size_t axis = rank; axis-- > 0;) {
      place += step[axis];
      if (++at[axis] < shape[axis]) break;
      place -= step[axis] * shape[axis];
      at[axis] = 0;
    }
  }
}

}  // namespace

Result<void> decompress(ZarrCodec codec, ByteSpan encoded, MutableByteSpan out) {
  switch (codec) {
    case ZarrCodec::kNone:
      if (encoded.size() != out.size()) return fail(Code::kAnswerNo, "", "a chunk of the wrong size");
      std::memcpy(out.data(), encoded.data(), out.size());
      return {};
    case ZarrCodec::kBlosc: return decompress_blosc(encoded, out);
    case ZarrCodec::kZstd: return decompress_zstd(encoded, out);
    case ZarrCodec::kZlib: return decompress_deflate(encoded, out, false);
    case ZarrCodec::kGzip: return decompress_deflate(encoded, out, true);
    case ZarrCodec::kLz4: return decompress_lz4(encoded, out);
  }
  return fail(Code::kBug, "", "unknown codec");
}

Result<void> ZarrDecoder::decode(const tensor::Tensor& tensor, const tensor::Shard& shard, ByteSpan encoded,
                                 MutableByteSpan out) const {
  auto found = arrays_.find(tensor.key);
  if (found == arrays_.end()) return fail(Code::kBug, tensor.key, "no decoder");
  const ZarrArray& array = found->second;
  const size_t item = tensor::item_size(array.dtype);
  if (array.fortran_order && array.shape.size() > 1) {
    std::vector<std::byte> columns(out.size());
    CKPT_TRY(decompress(array.codec, encoded, columns));
    to_row_major(shard.stored_shape.empty() ? shard.shape : shard.stored_shape, item, columns, out);
  } else {
    CKPT_TRY(decompress(array.codec, encoded, out));
  }
  bool complex = array.dtype == tensor::DType::kComplex64 || array.dtype == tensor::DType::kComplex128;
  if (array.big_endian) swap_bytes(out, complex ? item / 2 : item);
  return {};
}

}  // namespace ckpt::formats
