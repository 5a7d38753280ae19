#include "formats/zarr/zarr_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/json_reader.h"

namespace ckpt::formats {

using nlohmann::json;
using tensor::AxisOrder;
using tensor::DType;
using tensor::Shape;

namespace {

constexpr size_t kMaxCodecs = 16;
constexpr size_t kMaxSharding = 4;  ///< levels of shards in shards

Unexpected malformed(std::string message) {
  return fail(Code::kCorrupt, "", "malformed zarr.json: " + std::move(message));
}

/// A named thing of v3: {"name": ..., "configuration": {...}}, or its name alone.
struct Named {
  std::string name;
  json configuration = json::object();
};

Result<Named> parse_named(const json& value, const std::string& what) {
  Named out;
  if (value.is_string()) {
    out.name = value.get<std::string>();
    return out;
  }
  if (!value.is_object() || !value.contains("name") || !value["name"].is_string())
    return malformed(what + " has no name");
  out.name = value["name"].get<std::string>();
  if (auto it = value.find("configuration"); it != value.end()) {
    if (!it->is_object()) return malformed("the configuration of " + what + " is no object");
    out.configuration = *it;
  }
  return out;
}

Result<Named> member_named(const json& doc, const char* name) {
  auto it = doc.find(name);
  if (it == doc.end()) return malformed(std::string(name) + " is missing");
  return parse_named(*it, name);
}

Result<Shape> parse_sizes(const json& doc, const char* name) {
  auto it = doc.find(name);
  if (it == doc.end() || !it->is_array() || it->size() > kMaxZarrRank)
    return malformed(std::string(name) + " is not a list of sizes");
  Shape out;
  for (const json& n : *it) {
    if (!n.is_number_unsigned()) return malformed(std::string(name) + " holds something else than sizes");
    out.push_back(n.get<uint64_t>());
  }
  return out;
}

Result<DType> parse_data_type(const json& doc) {
  CKPT_TRY_ASSIGN(Named type, member_named(doc, "data_type"));
  std::string name = type.name;
  // The names of the zarr-extensions registry for complex numbers of two floats.
  constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
      {"complex_float16", "complex32"}, {"complex_float32", "complex64"}, {"complex_float64", "complex128"}};
  for (const auto& alias : kAliases) {
    if (name == alias.first) name = alias.second;
  }
  auto dtype = tensor::dtype_from_name(name);
  if (!dtype || !type.configuration.empty())
    return unsupported_in_zarr("data type " + type.name + " is not a number that tensors hold");
  return *dtype;
}

/// What is known while a chain of codecs is read from its first (nearest to the array) to its last.
struct Chain {
  Shape chunk;      ///< by the array's axes
  AxisOrder axes;   ///< so far; always of the full rank
  uint32_t unit;    ///< bytes that change their ends together
  std::vector<ZarrCodec> filters;  ///< array -> array, in the order of encoding
};

Result<void> parse_transpose(const Named& codec, Chain& chain) {
  const size_t rank = chain.axes.size();
  if (!chain.filters.empty()) return unsupported_in_zarr("codec transpose behind a filter is not read");
  auto order = codec.configuration.find("order");
  AxisOrder permutation;
  if (order != codec.configuration.end() && (*order == "C" || *order == "F")) {  // a draft of v3
    for (size_t i = 0; i < rank; ++i) permutation.push_back(static_cast<uint32_t>(*order == "C" ? i : rank - 1 - i));
  } else {
    CKPT_TRY_ASSIGN(Shape numbers, parse_sizes(codec.configuration, "order"));
    std::vector<bool> seen(rank);
    if (numbers.size() != rank) return malformed("the order of codec transpose has another rank");
    for (uint64_t n : numbers) {
      if (n >= rank || seen[n]) return malformed("the order of codec transpose is no permutation");
      seen[n] = true;
      permutation.push_back(static_cast<uint32_t>(n));
    }
  }
  AxisOrder composed(rank);
  for (size_t i = 0; i < rank; ++i) composed[i] = chain.axes[permutation[i]];
  chain.axes = composed;
  return {};
}

/// A codec of numcodecs under its v3 name; nothing: not one, or one that changes nothing.
Result<std::optional<ZarrCodec>> parse_extension(const Named& codec) {
  constexpr std::string_view kPrefix = "numcodecs.";
  if (codec.name.rfind(kPrefix, 0) != 0) return unsupported_in_zarr("codec " + codec.name + " is not read");
  return parse_numcodec(codec.name.substr(kPrefix.size()), codec.configuration.dump());
}

/// array -> array: the codec was taken.
Result<bool> parse_array_codec(const Named& codec, Chain& chain) {
  if (codec.name == "transpose") {
    CKPT_TRY(parse_transpose(codec, chain));
    return true;
  }
  constexpr std::string_view kFilters[] = {"numcodecs.delta", "numcodecs.fixedscaleoffset", "numcodecs.bitround",
                                           "numcodecs.quantize"};
  if (std::find(std::begin(kFilters), std::end(kFilters), codec.name) == std::end(kFilters)) return false;
  CKPT_TRY_ASSIGN(auto filter, parse_extension(codec));
  if (!filter) return true;
  // The codec `bytes` behind it decides on the byte order.
  filter->stored.big_endian = filter->decoded.big_endian = false;
  chain.unit = tensor::swap_unit(filter->stored.dtype);
  chain.filters.push_back(*filter);
  return true;
}

Result<std::optional<ZarrCodec>> parse_bytes(const Named& codec, uint32_t unit) {
  auto endian = codec.configuration.find("endian");
  const bool absent = endian == codec.configuration.end() || endian->is_null();
  if (absent && unit > 1) return malformed("codec bytes names no byte order");
  if (!absent && *endian != "little" && *endian != "big") return malformed("codec bytes names an unknown byte order");
  if (absent || *endian == "little" || unit == 1) return std::optional<ZarrCodec>();
  ZarrCodec swap;
  swap.kind = ZarrCodec::Kind::kSwap;
  swap.unit = unit;
  return std::optional(swap);
}

Result<std::optional<ZarrCodec>> parse_bytes_codec(const Named& codec) {
  for (std::string_view name : {"gzip", "zstd", "blosc", "crc32c"}) {
    if (codec.name == name) return parse_numcodec(codec.name, codec.configuration.dump());
  }
  return parse_extension(codec);
}

Result<std::vector<Named>> parse_codec_list(const json& doc, const char* name) {
  auto it = doc.find(name);
  if (it == doc.end() || !it->is_array()) return malformed(std::string(name) + " is not a list");
  if (it->size() > kMaxCodecs) return malformed(std::string(name) + " has too many entries");
  std::vector<Named> out;
  for (const json& entry : *it) {
    CKPT_TRY_ASSIGN(Named codec, parse_named(entry, "a codec"));
    out.push_back(std::move(codec));
  }
  return out;
}

/// bytes -> bytes codecs from `first` on, the last one (undone first) in front.
Result<std::vector<ZarrCodec>> parse_bytes_codecs(const std::vector<Named>& codecs, size_t first) {
  std::vector<ZarrCodec> out;
  for (size_t i = codecs.size(); i-- > first;) {
    CKPT_TRY_ASSIGN(auto codec, parse_bytes_codec(codecs[i]));
    if (codec) out.push_back(*codec);
  }
  return out;
}

/// The index: 64-bit numbers through `bytes` and codecs whose sizes do not depend on the content.
Result<std::vector<ZarrCodec>> parse_index_codecs(const json& configuration) {
  CKPT_TRY_ASSIGN(auto codecs, parse_codec_list(configuration, "index_codecs"));
  if (codecs.empty() || codecs[0].name != "bytes")
    return unsupported_in_zarr("a shard index that does not begin with codec bytes is not read");
  CKPT_TRY_ASSIGN(auto out, parse_bytes_codecs(codecs, 1));
  for (const ZarrCodec& codec : out) {
    if (!stored_bytes(codec, 0)) return unsupported_in_zarr("a compressed shard index is not read");
  }
  CKPT_TRY_ASSIGN(auto swap, parse_bytes(codecs[0], 8));
  if (swap) out.push_back(*swap);
  return out;
}

Result<void> parse_chain(const json& doc, const char* name, Chain chain, ZarrArray& out);

Result<void> parse_sharding(const Named& codec, Chain chain, ZarrArray& out) {
  if (out.sharding.size() >= kMaxSharding) return unsupported_in_zarr("shards nested this deep are not read");
  if (!chain.filters.empty()) return unsupported_in_zarr("a filter around codec sharding_indexed is not read");
  ZarrSharding level;
  CKPT_TRY_ASSIGN(Shape inner, parse_sizes(codec.configuration, "chunk_shape"));
  if (inner.size() != chain.axes.size()) return malformed("inner chunks of another rank");
  level.chunk.resize(inner.size());
  for (size_t i = 0; i < inner.size(); ++i) level.chunk[chain.axes[i]] = inner[i];
  level.axes = chain.axes;
  CKPT_TRY_ASSIGN(level.index_codecs, parse_index_codecs(codec.configuration));
  auto location = codec.configuration.find("index_location");
  if (location != codec.configuration.end() && *location != "start" && *location != "end")
    return malformed("index_location is neither start nor end");
  level.index_at_start = location != codec.configuration.end() && *location == "start";
  chain.chunk = level.chunk;
  out.sharding.push_back(std::move(level));
  return parse_chain(codec.configuration, "codecs", std::move(chain), out);
}

Result<void> parse_chain(const json& doc, const char* name, Chain chain, ZarrArray& out) {
  CKPT_TRY_ASSIGN(auto codecs, parse_codec_list(doc, name));
  size_t at = 0;
  for (; at < codecs.size(); ++at) {
    CKPT_TRY_ASSIGN(bool taken, parse_array_codec(codecs[at], chain));
    if (!taken) break;
  }
  if (at == codecs.size()) return malformed("no codec makes bytes of the array");
  const Named& serializer = codecs[at];
  CKPT_TRY_ASSIGN(auto behind, parse_bytes_codecs(codecs, at + 1));
  if (serializer.name == "sharding_indexed") {
    if (!behind.empty()) return unsupported_in_zarr("a codec behind sharding_indexed is not read");
    return parse_sharding(serializer, std::move(chain), out);
  }
  if (serializer.name != "bytes" && serializer.name != "endian")
    return unsupported_in_zarr("codec " + serializer.name + " is not read");
  out.codecs = std::move(behind);
  CKPT_TRY_ASSIGN(auto swap, parse_bytes(serializer, chain.unit));
  if (swap) out.codecs.push_back(*swap);
  out.codecs.insert(out.codecs.end(), chain.filters.rbegin(), chain.filters.rend());
  out.axes = chain.axes;
  return {};
}

Result<void> parse_chunk_names(const json& doc, ZarrArray& out) {
  CKPT_TRY_ASSIGN(Named encoding, member_named(doc, "chunk_key_encoding"));
  const bool v2 = encoding.name == "v2";
  if (!v2 && encoding.name != "default")
    return unsupported_in_zarr("chunk key encoding " + encoding.name + " is not read");
  out.separator = v2 ? '.' : '/';
  if (auto it = encoding.configuration.find("separator"); it != encoding.configuration.end()) {
    if (*it != "." && *it != "/") return malformed("separator is neither . nor /");
    out.separator = *it == "/" ? '/' : '.';
  }
  out.prefix = v2 ? "" : std::string("c") + out.separator;
  out.scalar_name = v2 ? "0" : "c";
  return {};
}

Result<void> check_members(const json& doc) {
  constexpr std::string_view kKnown[] = {"zarr_format",     "node_type",
                                         "shape",           "data_type",
                                         "chunk_grid",      "chunk_key_encoding",
                                         "fill_value",      "codecs",
                                         "dimension_names", "storage_transformers",
                                         "attributes",      "consolidated_metadata"};
  for (const auto& item : doc.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), item.key()) != std::end(kKnown)) continue;
    const json& value = item.value();
    if (value.is_object() && value.contains("must_understand") && value["must_understand"] == false) continue;
    return unsupported_in_zarr("the extension " + item.key() + " is not known");
  }
  auto transformers = doc.find("storage_transformers");
  if (transformers != doc.end() && !transformers->empty())
    return unsupported_in_zarr("storage transformers are not read");
  return {};
}

}  // namespace

Result<ZarrArray> parse_zarr_json(std::string_view text) {
  if (!json_nests_at_most(text, kMaxZarrNesting)) return malformed("no JSON, or nested too deep");
  json doc = json::parse(text, nullptr, false);
  if (!doc.is_object()) return malformed("not a JSON object");
  auto version = doc.find("zarr_format");
  if (version == doc.end() || !version->is_number_integer()) return malformed("zarr_format is missing");
  if (*version != 3)
    return unsupported_in_zarr("zarr format " + version->dump() + " in a zarr.json is not read, only 3 is");
  if (!doc.contains("node_type") || doc["node_type"] != "array") return malformed("node_type is not array");
  CKPT_TRY(check_members(doc));
  ZarrArray out;
  CKPT_TRY_ASSIGN(out.shape, parse_sizes(doc, "shape"));
  CKPT_TRY_ASSIGN(Named grid, member_named(doc, "chunk_grid"));
  if (grid.name != "regular") return unsupported_in_zarr("chunk grid " + grid.name + " is not read");
  CKPT_TRY_ASSIGN(out.chunks, parse_sizes(grid.configuration, "chunk_shape"));
  if (out.shape.size() != out.chunks.size()) return malformed("shape and chunks differ in rank");
  CKPT_TRY_ASSIGN(out.dtype, parse_data_type(doc));
  CKPT_TRY(parse_chunk_names(doc, out));
  Chain chain{out.chunks, {}, tensor::swap_unit(out.dtype), {}};
  for (size_t i = 0; i < out.shape.size(); ++i) chain.axes.push_back(static_cast<uint32_t>(i));
  CKPT_TRY(parse_chain(doc, "codecs", std::move(chain), out));
  CKPT_TRY(check_array(out, "zarr.json"));
  auto fill = doc.find("fill_value");
  if (fill == doc.end()) return malformed("fill_value is missing");
  // Null is no value of v3, but some writers use it for zero.
  if (fill->is_null()) {
    out.fill.assign(tensor::item_size(out.dtype), std::byte{0});
  } else {
    CKPT_TRY_ASSIGN(out.fill, parse_fill_value(fill->dump(-1, ' ', true), out.dtype));
  }
  return out;
}

}  // namespace ckpt::formats
