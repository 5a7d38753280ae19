#include "formats/zarr/codecs.h"

#include <blosc.h>
#include <bzlib.h>
#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "lib/tensor/permute.h"

namespace ckpt::formats {

namespace {

Unexpected damaged(const char* codec, const std::string& why) {
  return fail(Code::kCorrupt, "", std::string("damaged ") + codec + " data: " + why);
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

/// How a stream of zlib's or bzip2's ended: their interfaces are alike.
struct StreamEnd {
  int state = 0;
  size_t made = 0;        ///< bytes
  bool too_long = false;  ///< there was more than `out` takes
};

/// `decode` is called until it says something else than `ok`, makes no progress or has made too much.
template <class Stream, class Decode>
StreamEnd decode_stream(Stream& stream, ByteSpan encoded, MutableByteSpan out, int ok, Decode decode) {
  using Byte = std::remove_pointer_t<decltype(stream.next_out)>;
  constexpr size_t kStep = 1 << 30;  // they count in 32 bits
  std::byte beyond{};                // one byte more than wanted shows a stream that is too long
  StreamEnd end{ok};
  size_t in_at = 0;
  while (end.state == ok) {
    const size_t in = std::min(kStep, encoded.size() - in_at), room = std::min(kStep, out.size() - end.made);
    stream.next_in = reinterpret_cast<Byte*>(const_cast<std::byte*>(encoded.data() + in_at));
    stream.avail_in = static_cast<unsigned>(in);
    stream.next_out = reinterpret_cast<Byte*>(room > 0 ? out.data() + end.made : &beyond);
    stream.avail_out = static_cast<unsigned>(std::max<size_t>(room, 1));
    end.state = decode(&stream);
    in_at += in - stream.avail_in;
    const size_t made = std::max<size_t>(room, 1) - stream.avail_out;
    end.too_long = room == 0 && made > 0;
    if (end.too_long) break;
    end.made += made;
    if (in == stream.avail_in && made == 0) break;
  }
  return end;
}

Result<void> check_end(const StreamEnd& end, int wanted, size_t size, const char* name) {
  if (end.too_long) return damaged(name, kWrongSize);
  if (end.state != wanted) return damaged(name, "it does not decode");
  if (end.made != size) return damaged(name, kWrongSize);
  return {};
}

Result<void> decompress_deflate(ByteSpan encoded, MutableByteSpan out, bool gzip) {
  z_stream stream{};
  if (inflateInit2(&stream, gzip ? 15 + 16 : 15) != Z_OK) return fail(Code::kNoRoom, "", "cannot start zlib");
  const StreamEnd end =
      decode_stream(stream, encoded, out, Z_OK, [](z_stream* s) { return inflate(s, Z_NO_FLUSH); });
  inflateEnd(&stream);
  return check_end(end, Z_STREAM_END, out.size(), gzip ? "gzip" : "zlib");
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

Result<void> decompress_bz2(ByteSpan encoded, MutableByteSpan out) {
  bz_stream stream{};
  if (BZ2_bzDecompressInit(&stream, 0, 0) != BZ_OK) return fail(Code::kNoRoom, "", "cannot start bzip2");
  const StreamEnd end = decode_stream(stream, encoded, out, BZ_OK, BZ2_bzDecompress);
  BZ2_bzDecompressEnd(&stream);
  return check_end(end, BZ_STREAM_END, out.size(), "bz2");
}

using Kind = ZarrCodec::Kind;

bool is_compressor(Kind kind) { return kind <= Kind::kBz2; }
bool is_checksum(Kind kind) { return kind == Kind::kCrc32c || kind == Kind::kCrc32 || kind == Kind::kAdler32; }

Result<void> decompress(Kind kind, ByteSpan encoded, MutableByteSpan out) {
  switch (kind) {
    case Kind::kBlosc: return decompress_blosc(encoded, out);
    case Kind::kZstd: return decompress_zstd(encoded, out);
    case Kind::kZlib: return decompress_deflate(encoded, out, false);
    case Kind::kGzip: return decompress_deflate(encoded, out, true);
    case Kind::kLz4: return decompress_lz4(encoded, out);
    case Kind::kBz2: return decompress_bz2(encoded, out);
    default: return fail(Code::kBug, "", "no compressor");
  }
}

/// What a compressor in front of another one holds: only the stream itself knows. Tried with room that doubles, up to
/// `limit`.
Result<std::vector<std::byte>> decompress_unknown(Kind kind, ByteSpan encoded, uint64_t limit) {
  size_t size = 0;
  if (kind == Kind::kBlosc && encoded.size() >= BLOSC_MIN_HEADER_LENGTH) {
    if (blosc_cbuffer_validate(encoded.data(), encoded.size(), &size) != 0) return damaged("blosc", "bad header");
  } else if (kind == Kind::kLz4 && encoded.size() >= 4) {
    uint32_t n = 0;
    std::memcpy(&n, encoded.data(), sizeof n);
    size = n;
  } else if (kind == Kind::kZstd) {
    auto n = ZSTD_getFrameContentSize(encoded.data(), encoded.size());
    if (n == ZSTD_CONTENTSIZE_UNKNOWN || n == ZSTD_CONTENTSIZE_ERROR)
      return fail(Code::kUnsupported, "", "zstd data of unknown size in front of another codec");
    size = n;
  } else {
    return fail(Code::kUnsupported, "", "zlib, gzip or bz2 in front of another compressor is not read");
  }
  if (size > limit) return damaged("compressed", "it holds more than the chunk could");
  std::vector<std::byte> out(size);
  CKPT_TRY(decompress(kind, encoded, out));
  return out;
}

}  // namespace

std::optional<uint64_t> stored_bytes(const ZarrCodec& codec, uint64_t decoded) {
  if (is_compressor(codec.kind)) return std::nullopt;
  if (is_checksum(codec.kind)) return decoded + 4;
  if (codec.kind == Kind::kDelta || codec.kind == Kind::kScaleOffset) {
    return decoded / tensor::item_size(codec.decoded.dtype) * tensor::item_size(codec.stored.dtype);
  }
  return decoded;
}

Result<void> decode_steps(std::span<const ZarrCodec> steps, ByteSpan encoded, MutableByteSpan out) {
  // The size behind every step, from the last one back as far as it is known.
  std::vector<std::optional<uint64_t>> sizes(steps.size() + 1);
  sizes[steps.size()] = out.size();
  for (size_t i = steps.size(); i-- > 0;) {
    if (sizes[i + 1]) sizes[i] = stored_bytes(steps[i], *sizes[i + 1]);
  }
  size_t swaps = steps.size();  // from here on the bytes stay where they are
  while (swaps > 0 && steps[swaps - 1].kind == Kind::kSwap) --swaps;
  std::vector<std::byte> held;
  ByteSpan current = encoded;
  for (size_t i = 0; i < swaps; ++i) {
    const ZarrCodec& step = steps[i];
    if (is_checksum(step.kind)) {
      CKPT_TRY_ASSIGN(current, check_and_strip(step, current));
      continue;
    }
    if (sizes[i] && current.size() != *sizes[i]) return fail(Code::kCorrupt, "", "a chunk of the wrong size");
    std::vector<std::byte> next;
    MutableByteSpan target = out;
    if (!sizes[i + 1]) {
      CKPT_TRY_ASSIGN(next, decompress_unknown(step.kind, current, out.size() * 2 + (1 << 20)));
      target = next;
    } else {
      if (i + 1 < swaps) {
        next.resize(*sizes[i + 1]);
        target = next;
      }
      if (is_compressor(step.kind)) CKPT_TRY(decompress(step.kind, current, target));
      else CKPT_TRY(undo_filter(step, current, target));
    }
    held = std::move(next);  // what `current` pointed to is used up
    current = target;
  }
  if (current.size() != out.size()) return fail(Code::kCorrupt, "", "a chunk of the wrong size");
  if (current.data() != out.data() && !out.empty()) std::memcpy(out.data(), current.data(), out.size());
  for (size_t i = swaps; i < steps.size(); ++i) tensor::swap_bytes(out, steps[i].unit);
  return {};
}

}  // namespace ckpt::formats
