#include "formats/megatron/metadata_json.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "lib/base/io.h"
#include "lib/base/json_reader.h"

namespace ckpt::formats {

namespace {

constexpr uint64_t kMaxBytes = 1 << 20;

std::optional<std::vector<uint64_t>> parse_numbers(std::string_view text) {
  std::vector<uint64_t> out;
  for (;;) {
    uint64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || out.size() >= 64) return std::nullopt;
    out.push_back(value);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty()) return out;
    if (text[0] != '.') return std::nullopt;
    text.remove_prefix(1);
  }
}

std::string join_numbers(const std::vector<uint64_t>& numbers) {
  std::string out;
  for (uint64_t n : numbers) out += (out.empty() ? "" : ".") + std::to_string(n);
  return out;
}

}  // namespace

Result<std::optional<MegatronMetadata>> read_megatron_metadata(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "metadata.json";
  auto text = io::read_file(path, kMaxBytes);
  if (!text) {
    if (text.error().code == Code::kNotFound) return std::optional<MegatronMetadata>();
    return std::move(text).error();
  }
  if (!json_nests_at_most(*text, kMaxJsonDepth))
    return fail(Code::kCorrupt, path.string(), "is not a JSON object, or nests too deep");
  auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object()) return fail(Code::kCorrupt, path.string(), "is not a JSON object");
  if (!json.contains("sharded_backend")) return std::optional<MegatronMetadata>();
  const auto& backend = json["sharded_backend"];
  const auto version = json.find("sharded_backend_version");
  if (!backend.is_string() || (version != json.end() && !version->is_number_integer())) {
    return fail(Code::kCorrupt, path.string(), "its members have wrong types");
  }
  std::string name = backend.get<std::string>();
  if (name != "zarr" && name != "torch_dist") {
    return fail(Code::kUnsupported, path.string(), "names the backend \"" + name + "\", of which ckpt knows nothing");
  }
  if (version != json.end() && *version != 1) {
    return fail(Code::kUnsupported, path.string(), "backend version " + version->dump() + " is not known, only 1 is");
  }
  return std::optional<MegatronMetadata>(MegatronMetadata{std::move(name), std::move(*text)});
}

bool has_megatron_backend(const std::filesystem::path& dir, const std::string& backend) {
  auto metadata = read_megatron_metadata(dir);
  return metadata && *metadata && (*metadata)->backend == backend;
}

std::optional<ObjectPlace> parse_object_place(std::string_view name) {
  constexpr std::string_view kPrefix = "shard_";
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  size_t bar = name.find('_');
  if (bar == std::string_view::npos) return std::nullopt;
  auto offset = parse_numbers(name.substr(0, bar)), shape = parse_numbers(name.substr(bar + 1));
  if (!offset || !shape) return std::nullopt;
  return ObjectPlace{std::move(*offset), std::move(*shape)};
}

std::string object_place_name(const ObjectPlace& place) {
  return "shard_" + join_numbers(place.offset) + "_" + join_numbers(place.shape);
}

}  // namespace ckpt::formats
