#include "formats/zarr/zarray.h"

#include <nlohmann/json.hpp>

#include "lib/base/json_reader.h"

namespace ckpt::formats {

using nlohmann::json;
using tensor::DType;

namespace {

constexpr size_t kMaxFilters = 16;

Unexpected malformed_zarray(std::string message) {
  return fail(Code::kCorrupt, "", "malformed .zarray: " + std::move(message));
}

Result<tensor::Shape> parse_shape(const json& doc, const char* name) {
  auto it = doc.find(name);
  if (it == doc.end() || !it->is_array() || it->size() > kMaxZarrRank)
    return malformed_zarray(std::string(name) + " is not a list of sizes");
  tensor::Shape out;
  for (const json& n : *it) {
    if (!n.is_number_unsigned()) return malformed_zarray(std::string(name) + " holds something else than sizes");
    out.push_back(n.get<uint64_t>());
  }
  return out;
}

/// Also the step that puts the bytes into order, if there has to be one.
Result<std::optional<ZarrCodec>> parse_dtype(const json& doc, bool megatron, ZarrArray& out) {
  auto it = doc.find("dtype");
  if (it != doc.end() && it->is_array()) return unsupported_in_zarr("structured dtypes are not read");
  if (it == doc.end() || !it->is_string()) return malformed_zarray("dtype is not a string");
  const std::string name = it->get<std::string>();
  // TensorStore's own names, without an order sign.
  if (name == "bfloat16" || name.rfind("float8_", 0) == 0) {
    auto dtype = tensor::dtype_from_name(name);
    if (!dtype) return unsupported_in_zarr("dtype " + name + " is not known");
    out.dtype = *dtype;
    return std::optional<ZarrCodec>();
  }
  if (megatron && (name == "<V2" || name == "|V2")) {
    out.dtype = DType::kBfloat16;
    out.void_bfloat16 = true;
    return std::optional<ZarrCodec>();
  }
  if (name == "|O") return unsupported_in_zarr("dtype |O (Python objects) is not read");
  if (name.size() < 3 || (name[0] != '<' && name[0] != '>' && name[0] != '|'))
    return malformed_zarray("dtype \"" + name + "\"");
  auto number = parse_numpy_type(name);
  if (!number && name[0] == '|' && parse_numpy_type("<" + name.substr(1)))
    return malformed_zarray("dtype \"" + name + "\" has no byte order");
  if (!number) return unsupported_in_zarr("dtype " + name + " is not a number that tensors hold");
  out.dtype = number->dtype;
  if (!number->big_endian) return std::optional<ZarrCodec>();
  ZarrCodec swap;
  swap.kind = ZarrCodec::Kind::kSwap;
  swap.unit = tensor::swap_unit(number->dtype);
  return std::optional(swap);
}

Result<void> add_codec(const json& config, ZarrArray& out) {
  if (!config.is_object() || !config.contains("id") || !config["id"].is_string())
    return malformed_zarray("a codec has no id");
  const std::string id = config["id"].get<std::string>();
  CKPT_TRY_ASSIGN(auto codec, parse_numcodec(id, config.dump()));
  if (codec) out.codecs.push_back(*codec);
  return {};
}

/// The compressor came last when the chunk was written, so it is undone first; then the filters, the last one first.
Result<void> parse_codecs(const json& doc, ZarrArray& out) {
  auto compressor = doc.find("compressor");
  if (compressor != doc.end() && !compressor->is_null()) CKPT_TRY(add_codec(*compressor, out));
  auto filters = doc.find("filters");
  if (filters == doc.end() || filters->is_null()) return {};
  if (!filters->is_array() || filters->size() > kMaxFilters) return malformed_zarray("filters is not a list");
  for (size_t i = filters->size(); i-- > 0;) CKPT_TRY(add_codec((*filters)[i], out));
  return {};
}

Result<void> parse_order(const json& doc, ZarrArray& out) {
  auto order = doc.find("order");
  if (order != doc.end() && *order != "C" && *order != "F") return malformed_zarray("order is neither C nor F");
  for (size_t i = out.shape.size(); order != doc.end() && *order == "F" && i-- > 0;)
    out.axes.push_back(static_cast<uint32_t>(i));
  auto separator = doc.find("dimension_separator");
  if (separator == doc.end() || separator->is_null()) return {};
  if (*separator != "." && *separator != "/") return malformed_zarray("dimension_separator is neither . nor /");
  out.separator = *separator == "/" ? '/' : '.';
  return {};
}

}  // namespace

Result<ZarrArray> parse_zarray(std::string_view text, bool megatron) {
  if (!json_nests_at_most(text, kMaxZarrNesting)) return malformed_zarray("no JSON, or nested too deep");
  json doc = json::parse(text, nullptr, false);
  if (!doc.is_object()) return malformed_zarray("not a JSON object");
  auto version = doc.find("zarr_format");
  if (version == doc.end() || !version->is_number_integer()) return malformed_zarray("zarr_format is missing");
  if (*version != 2)
    return unsupported_in_zarr("zarr format " + version->dump() + " in a .zarray is not read, only 2 is");
  ZarrArray out;
  CKPT_TRY_ASSIGN(out.shape, parse_shape(doc, "shape"));
  CKPT_TRY_ASSIGN(out.chunks, parse_shape(doc, "chunks"));
  CKPT_TRY_ASSIGN(auto swap, parse_dtype(doc, megatron, out));
  CKPT_TRY(parse_order(doc, out));
  CKPT_TRY(parse_codecs(doc, out));
  if (swap) out.codecs.push_back(*swap);
  CKPT_TRY(check_array(out, ".zarray"));
  auto fill = doc.find("fill_value");
  if (fill != doc.end() && !fill->is_null()) {
    CKPT_TRY_ASSIGN(out.fill, parse_fill_value(fill->dump(-1, ' ', true), out.dtype));
  }
  return out;
}

}  // namespace ckpt::formats
