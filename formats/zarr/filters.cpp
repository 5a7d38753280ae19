// Filters and checksums of numcodecs, and the configurations of all its codecs.
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/zarr/codecs.h"
#include "lib/base/digest.h"
#include "lib/tensor/permute.h"

namespace ckpt::formats {

using nlohmann::json;
using tensor::DType;
using Kind = ZarrCodec::Kind;

namespace {

bool is_integer(DType dtype) { return dtype >= DType::kUint8 && dtype <= DType::kInt64; }
bool is_signed(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 || dtype == DType::kInt64;
}
bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

/// One stored integer, sign extended: differences are added modulo 2^64, of which the result's bytes are cut.
uint64_t load_integer(const NumpyType& number, const std::byte* from) {
  const size_t size = tensor::item_size(number.dtype);
  uint64_t out = 0;
  for (size_t i = 0; i < size; ++i) {
    out |= static_cast<uint64_t>(from[number.big_endian ? size - 1 - i : i]) << (8 * i);
  }
  const unsigned unused = 64 - 8 * static_cast<unsigned>(size);
  if (is_signed(number.dtype)) return static_cast<uint64_t>(static_cast<int64_t>(out << unused) >> unused);
  return out;
}

template <class Float>
Float load_float(const NumpyType& number, const std::byte* from) {
  if (is_integer(number.dtype)) {
    uint64_t bits = load_integer(number, from);
    return is_signed(number.dtype) ? static_cast<Float>(static_cast<int64_t>(bits)) : static_cast<Float>(bits);
  }
  std::byte raw[8];
  const size_t size = tensor::item_size(number.dtype);
  std::memcpy(raw, from, size);
  if (number.big_endian) std::reverse(raw, raw + size);
  if (size == sizeof(float)) {
    float value = 0;
    std::memcpy(&value, raw, sizeof value);
    return static_cast<Float>(value);
  }
  double value = 0;
  std::memcpy(&value, raw, sizeof value);
  return static_cast<Float>(value);
}

template <class Value>
void store(const NumpyType& number, Value value, std::byte* to) {
  const size_t size = tensor::item_size(number.dtype);
  std::memcpy(to, &value, size);
  if (number.big_endian) std::reverse(to, to + size);
}

template <class Float>
void undo_delta_as(const ZarrCodec& codec, size_t count, ByteSpan in, MutableByteSpan out) {
  const size_t from = tensor::item_size(codec.stored.dtype), to = tensor::item_size(codec.decoded.dtype);
  Float sum = 0;
  for (size_t i = 0; i < count; ++i) {
    Float value = load_float<Float>(codec.stored, in.data() + i * from);
    sum = i == 0 ? value : sum + value;
    store(codec.decoded, sum, out.data() + i * to);
  }
}

void undo_delta(const ZarrCodec& codec, ByteSpan in, MutableByteSpan out) {
  const size_t from = tensor::item_size(codec.stored.dtype), to = tensor::item_size(codec.decoded.dtype);
  const size_t count = out.size() / to;
  if (codec.decoded.dtype == DType::kFloat32) return undo_delta_as<float>(codec, count, in, out);
  if (codec.decoded.dtype == DType::kFloat64) return undo_delta_as<double>(codec, count, in, out);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += load_integer(codec.stored, in.data() + i * from);
    store(codec.decoded, sum, out.data() + i * to);
  }
}

/// In the precision that numpy computes in: float32 for stored float32, else float64.
template <class Float>
void undo_scale(const ZarrCodec& codec, ByteSpan in, MutableByteSpan out) {
  const size_t from = tensor::item_size(codec.stored.dtype), to = tensor::item_size(codec.decoded.dtype);
  const size_t count = out.size() / to;
  const auto scale = static_cast<Float>(codec.scale), offset = static_cast<Float>(codec.offset);
  for (size_t i = 0; i < count; ++i) {
    const Float value = load_float<Float>(codec.stored, in.data() + i * from) / scale + offset;
    if (to == sizeof(float)) store(codec.decoded, static_cast<float>(value), out.data() + i * to);
    else store(codec.decoded, static_cast<double>(value), out.data() + i * to);
  }
}

void undo_shuffle(size_t unit, ByteSpan in, MutableByteSpan out) {
  const size_t count = out.size() / unit;
  for (size_t byte = 0; byte < unit; ++byte) {
    const std::byte* from = in.data() + byte * count;
    for (size_t i = 0; i < count; ++i) out[i * unit + byte] = from[i];
  }
}

std::string text_of(const json& config, const char* name) {
  auto it = config.find(name);
  return it != config.end() && it->is_string() ? it->get<std::string>() : "";
}

Result<void> parse_number_pair(const std::string& id, const json& config, ZarrCodec& out) {
  const std::string decoded = text_of(config, "dtype");
  std::string stored = text_of(config, "astype");
  if (stored.empty()) stored = decoded;
  auto a = parse_numpy_type(stored), b = parse_numpy_type(decoded);
  if (!a || !b) return unsupported_in_zarr("filter " + id + " from " + stored + " to " + decoded + " is not read");
  out.stored = *a, out.decoded = *b;
  const bool readable = (is_integer(a->dtype) || is_float(a->dtype)) &&
                        (is_float(b->dtype) || (id == "delta" && is_integer(a->dtype) && is_integer(b->dtype)));
  if (!readable) return unsupported_in_zarr("filter " + id + " from " + stored + " to " + decoded + " is not read");
  return {};
}

std::optional<Kind> plain_kind(const std::string& id) {
  constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"blosc", Kind::kBlosc}, {"zstd", Kind::kZstd},     {"zlib", Kind::kZlib},
      {"gzip", Kind::kGzip},   {"lz4", Kind::kLz4},       {"bz2", Kind::kBz2},
      {"crc32", Kind::kCrc32}, {"crc32c", Kind::kCrc32c}, {"adler32", Kind::kAdler32},
  };
  for (const auto& row : kKinds) {
    if (row.first == id) return row.second;
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<ZarrCodec>> parse_numcodec(const std::string& id, std::string_view text) {
  const json config = json::parse(text, nullptr, false);
  if (!config.is_object()) return fail(Code::kCorrupt, "", "the configuration of " + id + " is no object");
  ZarrCodec out;
  if (auto kind = plain_kind(id)) {
    out.kind = *kind;
    // crc32 and adler32 stand in front of the data unless it is said otherwise, crc32c behind.
    const std::string location = text_of(config, "location");
    out.at_start = location.empty() ? out.kind != Kind::kCrc32c : location == "start";
    return std::optional(out);
  }
  if (id == "shuffle") {
    auto unit = config.find("elementsize");
    if (unit != config.end() && (!unit->is_number_unsigned() || *unit < 1 || *unit > 256))
      return unsupported_in_zarr("filter shuffle of elements of this size is not read");
    out.kind = Kind::kShuffle;
    out.unit = unit == config.end() ? 4 : unit->get<uint32_t>();
    return std::optional(out);
  }
  if (id == "delta") {
    out.kind = Kind::kDelta;
    CKPT_TRY(parse_number_pair(id, config, out));
    return std::optional(out);
  }
  if (id == "fixedscaleoffset") {
    out.kind = Kind::kScaleOffset;
    CKPT_TRY(parse_number_pair(id, config, out));
    for (auto [name, value] : {std::pair{"offset", &out.offset}, std::pair{"scale", &out.scale}}) {
      auto it = config.find(name);
      if (it == config.end() || !it->is_number())
        return fail(Code::kCorrupt, "", "filter fixedscaleoffset has no number called " + std::string(name));
      *value = it->get<double>();
    }
    return std::optional(out);
  }
  if (id == "bitround" || (id == "quantize" && (text_of(config, "astype").empty() ||
                                                text_of(config, "astype") == text_of(config, "dtype")))) {
    return std::optional<ZarrCodec>();
  }
  return unsupported_in_zarr("codec " + id + " is not read");
}

Result<ByteSpan> check_and_strip(const ZarrCodec& codec, ByteSpan encoded) {
  if (encoded.size() < 4) return fail(Code::kCorrupt, "", "too short for its checksum");
  const ByteSpan data = codec.at_start ? encoded.subspan(4) : encoded.first(encoded.size() - 4);
  uint32_t told = 0, found = 0;
  std::memcpy(&told, codec.at_start ? encoded.data() : encoded.data() + data.size(), sizeof told);
  if (codec.kind == Kind::kCrc32c) found = crc32c(0, data);
  else if (codec.kind == Kind::kCrc32) found = crc32(0, data);
  else found = static_cast<uint32_t>(::adler32_z(1, reinterpret_cast<const Bytef*>(data.data()), data.size()));
  if (told != found) return fail(Code::kCorrupt, "", "the checksum differs");
  return data;
}

Result<void> undo_filter(const ZarrCodec& codec, ByteSpan in, MutableByteSpan out) {
  switch (codec.kind) {
    case Kind::kSwap:
      std::memcpy(out.data(), in.data(), out.size());
      tensor::swap_bytes(out, codec.unit);
      return {};
    case Kind::kShuffle:
      if (out.size() % codec.unit != 0)
        return fail(Code::kCorrupt, "", "shuffled data that is no whole number of elements");
      undo_shuffle(codec.unit, in, out);
      return {};
    case Kind::kDelta:
    case Kind::kScaleOffset:
      if (out.size() % tensor::item_size(codec.decoded.dtype) != 0)
        return fail(Code::kCorrupt, "", "filtered data that is no whole number of elements");
      if (codec.kind == Kind::kDelta) undo_delta(codec, in, out);
      else if (codec.stored.dtype == DType::kFloat32) undo_scale<float>(codec, in, out);
      else undo_scale<double>(codec, in, out);
      return {};
    default: return fail(Code::kBug, "", "no filter");
  }
}

}  // namespace ckpt::formats
