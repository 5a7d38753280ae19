#include "formats/zarr/zarray.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/checked.h"

namespace ckpt::formats {

using nlohmann::json;
using tensor::DType;

namespace {

constexpr size_t kMaxRank = 64;

Unexpected malformed(std::string message) { return fail(Code::kAnswerNo, "", "malformed .zarray: " + std::move(message)); }
Unexpected unsupported(std::string message) { return fail(Code::kUnsupported, "", std::move(message)); }

Result<tensor::Shape> parse_shape(const json& doc, const char* name) {
  auto it = doc.find(name);
  if (it == doc.end() || !it->is_array() || it->size() > kMaxRank) return malformed(std::string(name) + " is not a list of sizes");
  tensor::Shape out;
  for (const json& n : *it) {
    if (!n.is_number_unsigned()) return malformed(std::string(name) + " holds something else than sizes");
    out.push_back(n.get<uint64_t>());
  }
  return out;
}

struct ZarrType {
  const char* code;
  DType dtype;
};
constexpr ZarrType kTypes[] = {
    {"b1", DType::kBool},    {"u1", DType::kUint8},    {"i1", DType::kInt8},      {"u2", DType::kUint16},
    {"i2", DType::kInt16},   {"u4", DType::kUint32},   {"i4", DType::kInt32},     {"u8", DType::kUint64},
    {"i8", DType::kInt64},   {"f2", DType::kFloat16},  {"f4", DType::kFloat32},   {"f8", DType::kFloat64},
    {"c8", DType::kComplex64}, {"c16", DType::kComplex128},
};

Result<void> parse_dtype(const json& doc, bool megatron, ZarrArray& out) {
  auto it = doc.find("dtype");
  if (it != doc.end() && it->is_array()) return unsupported("structured dtypes are not read");
  if (it == doc.end() || !it->is_string()) return malformed("dtype is not a string");
  const std::string name = it->get<std::string>();
  // TensorStore's own names, without an order sign.
  if (name == "bfloat16" || name.rfind("float8_", 0) == 0) {
    auto dtype = tensor::dtype_from_name(name);
    if (!dtype) return unsupported("dtype " + name + " is not known");
    out.dtype = *dtype;
    return {};
  }
  if (megatron && (name == "<V2" || name == "|V2")) {
    out.dtype = DType::kBfloat16;
    out.void_bfloat16 = true;
    return {};
  }
  if (name == "|O") return unsupported("dtype |O (Python objects) is not read");
  if (name.size() < 3 || (name[0] != '<' && name[0] != '>' && name[0] != '|')) return malformed("dtype \"" + name + "\"");
  for (const ZarrType& type : kTypes) {
    if (name.compare(1, std::string::npos, type.code) != 0) continue;
    out.dtype = type.dtype;
    out.big_endian = name[0] == '>' && tensor::item_size(type.dtype) > 1;
    if (name[0] == '|' && tensor::item_size(type.dtype) > 1) return malformed("dtype \"" + name + "\" has no byte order");
    return {};
  }
  return unsupported("dtype " + name + " is not a number that tensors hold");
}

Result<void> parse_codec(const json& doc, ZarrArray& out) {
  auto filters = doc.find("filters");
  if (filters != doc.end() && !filters->is_null()) {
    if (!filters->is_array()) return malformed("filters is not a list");
    for (const json& filter : *filters) {
      std::string id = filter.is_object() && filter.contains("id") && filter["id"].is_string() ? filter["id"].get<std::string>() : "?";
      return unsupported("filter " + id + " is not read");
    }
  }
  auto it = doc.find("compressor");
  if (it == doc.end() || it->is_null()) return {};
  if (!it->is_object() || !it->contains("id") || !(*it)["id"].is_string()) return malformed("compressor has no id");
  const std::string id = (*it)["id"].get<std::string>();
  constexpr std::pair<const char*, ZarrCodec> kCodecs[] = {{"blosc", ZarrCodec::kBlosc},
                                                           {"zstd", ZarrCodec::kZstd},
                                                           {"zlib", ZarrCodec::kZlib},
                                                           {"gzip", ZarrCodec::kGzip},
                                                           {"lz4", ZarrCodec::kLz4}};
  for (const auto& codec : kCodecs) {
    if (id == codec.first) out.codec = codec.second;
  }
  if (out.codec == ZarrCodec::kNone) return unsupported("compressor " + id + " is not read");
  return {};
}

template <class Value>
std::vector<std::byte> bytes_of(Value value) {
  std::vector<std::byte> out(sizeof value);
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

/// A float as IEEE half, round to nearest even; what is too large becomes infinity.
uint16_t to_half(double value) {
  if (std::isnan(value)) return 0x7e00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  double magnitude = std::fabs(value);
  if (magnitude >= 65520.0) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24)));
  int exponent = 0;
  double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  auto mantissa = static_cast<uint32_t>(std::nearbyint(fraction * 0x1p11));
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + static_cast<int>(mantissa) - 1024));
}

uint16_t to_bfloat16(double value) {
  auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

std::optional<double> fill_number(const json& fill) {
  if (fill.is_number()) return fill.get<double>();
  if (fill.is_boolean()) return fill.get<bool>() ? 1.0 : 0.0;
  if (fill == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (fill == "Infinity") return std::numeric_limits<double>::infinity();
  if (fill == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

/// An integer fill value, the two's complement of `bytes` bytes; nothing when it does not fit.
std::optional<std::vector<std::byte>> integer_fill(const json& fill, size_t bytes, bool is_signed) {
  uint64_t bits = 0;
  if (fill.is_number_unsigned()) {
    bits = fill.get<uint64_t>();
    unsigned room = static_cast<unsigned>(bytes) * 8 - (is_signed ? 1 : 0);
    if (room < 64 && (bits >> room) != 0) return std::nullopt;
  } else if (fill.is_number_integer() && is_signed) {
    int64_t value = fill.get<int64_t>();
    if (bytes < 8 && value < -(int64_t{1} << (bytes * 8 - 1))) return std::nullopt;
    bits = static_cast<uint64_t>(value);
  } else {
    auto number = fill_number(fill);
    if (!number || !(std::fabs(*number) < 0x1p53) || std::trunc(*number) != *number) return std::nullopt;
    return integer_fill(json(static_cast<int64_t>(*number)), bytes, is_signed || *number >= 0);
  }
  auto out = bytes_of(bits);
  out.resize(bytes);
  return out;
}

Result<void> parse_fill(const json& doc, ZarrArray& out) {
  auto it = doc.find("fill_value");
  if (it == doc.end() || it->is_null()) return {};
  std::optional<double> number = fill_number(*it);
  std::optional<std::vector<std::byte>> bytes;
  switch (out.dtype) {
    case DType::kBool:
    case DType::kUint8: case DType::kUint16: case DType::kUint32: case DType::kUint64:
      bytes = integer_fill(*it, tensor::item_size(out.dtype), false);
      break;
    case DType::kInt8: case DType::kInt16: case DType::kInt32: case DType::kInt64:
      bytes = integer_fill(*it, tensor::item_size(out.dtype), true);
      break;
    case DType::kFloat16: if (number) bytes = bytes_of(to_half(*number)); break;
    case DType::kBfloat16: if (number) bytes = bytes_of(to_bfloat16(*number)); break;
    case DType::kFloat32: if (number) bytes = bytes_of(static_cast<float>(*number)); break;
    case DType::kFloat64: if (number) bytes = bytes_of(*number); break;
    case DType::kComplex64: case DType::kComplex128: {
      // zarr-python writes complex fill values as [real, imaginary] or, for zero, as one number.
      std::optional<double> real = number, imaginary = 0.0;
      if (it->is_array() && it->size() == 2) real = fill_number((*it)[0]), imaginary = fill_number((*it)[1]);
      if (!real || !imaginary) break;
      bool wide = out.dtype == DType::kComplex128;
      bytes = wide ? bytes_of(*real) : bytes_of(static_cast<float>(*real));
      auto second = wide ? bytes_of(*imaginary) : bytes_of(static_cast<float>(*imaginary));
      bytes->insert(bytes->end(), second.begin(), second.end());
      break;
    }
    default:
      if (number && *number == 0) bytes = std::vector<std::byte>(tensor::item_size(out.dtype));
  }
  if (!bytes) return unsupported("fill_value " + it->dump(-1, ' ', true) + " is not a value of dtype " +
                                 std::string(tensor::dtype_name(out.dtype)));
  out.fill = std::move(*bytes);
  return {};
}

}  // namespace

uint64_t ZarrArray::chunk_bytes() const { return tensor::element_count(chunks).value_or(0) * tensor::item_size(dtype); }

bool ZarrArray::raw() const {
  bool same_order = !fortran_order || shape.size() < 2;
  return codec == ZarrCodec::kNone && !big_endian && same_order;
}

tensor::Shape ZarrArray::grid() const {
  tensor::Shape out(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) out[i] = shape[i] / chunks[i] + (shape[i] % chunks[i] != 0 ? 1 : 0);
  return out;
}

Result<ZarrArray> parse_zarray(std::string_view text, bool megatron) {
  json doc = json::parse(text, nullptr, false);
  if (!doc.is_object()) return malformed("not a JSON object");
  auto version = doc.find("zarr_format");
  if (version == doc.end() || !version->is_number_integer()) return malformed("zarr_format is missing");
  if (*version != 2) return unsupported("zarr format " + version->dump() + " is not read, only 2 is");
  ZarrArray out;
  CKPT_TRY_ASSIGN(out.shape, parse_shape(doc, "shape"));
  CKPT_TRY_ASSIGN(out.chunks, parse_shape(doc, "chunks"));
  if (out.shape.size() != out.chunks.size()) return malformed("shape and chunks differ in rank");
  CKPT_TRY(parse_dtype(doc, megatron, out));
  for (uint64_t& chunk : out.chunks) {
    // zarr-python writes chunk length 0 for axes of length 0.
    if (chunk == 0 && tensor::element_count(out.shape) != uint64_t{0}) return malformed("a chunk of length 0");
    chunk = std::max<uint64_t>(chunk, 1);
  }
  for (const tensor::Shape* shape : {&out.shape, &out.chunks}) {
    auto count = tensor::element_count(*shape);
    if (!count || !checked_mul<uint64_t>(*count, tensor::item_size(out.dtype))) return malformed("more elements than can be counted");
  }
  auto order = doc.find("order");
  if (order != doc.end() && *order != "C" && *order != "F") return malformed("order is neither C nor F");
  out.fortran_order = order != doc.end() && *order == "F";
  auto separator = doc.find("dimension_separator");
  if (separator != doc.end() && !separator->is_null()) {
    if (*separator != "." && *separator != "/") return malformed("dimension_separator is neither . nor /");
    out.separator = *separator == "/" ? '/' : '.';
  }
  CKPT_TRY(parse_codec(doc, out));
  CKPT_TRY(parse_fill(doc, out));
  return out;
}

}  // namespace ckpt::formats
