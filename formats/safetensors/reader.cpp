#include "formats/safetensors/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "formats/finish.h"
#include "formats/safetensors/header.h"
#include "formats/torch_dist/metadata.h"
#include "lib/base/checked.h"
#include "lib/base/io.h"
#include "lib/base/json_reader.h"

namespace ckpt::formats {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr uint64_t kMaxIndexBytes = 256 << 20;
constexpr uint64_t kPrefix = 8;
constexpr size_t kMaxFiles = 100'000;

bool ends_with(const std::string& text, std::string_view tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

bool is_tensor_file(const std::string& name) { return ends_with(name, ".safetensors"); }

/// `model.safetensors.index.json`, and that of a variant: `model.safetensors.index.fp16.json`.
bool is_index(const std::string& name) {
  return ends_with(name, ".json") && name.find(".safetensors.index.") != std::string::npos;
}

/// Regular files of a folder with such names, sorted.
std::vector<std::string> files_with(const fs::path& dir, bool (*wanted)(const std::string& name)) {
  std::vector<std::string> out;
  std::error_code ec;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end && out.size() < kMaxFiles; it.increment(ec)) {
    std::string name = it->path().filename().string();
    if (wanted(name) && it->is_regular_file(ec)) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<SafetensorsHeader> read_header(int fd, uint64_t size, const std::string& name) {
  uint64_t length = 0;
  CKPT_TRY(io::pread_exact(fd, {reinterpret_cast<std::byte*>(&length), kPrefix}, 0, name));
  if (length > kMaxSafetensorsHeader || length > size - kPrefix)
    return fail(Code::kCorrupt, name, "the header is longer than the file or the limit");
  std::vector<std::byte> text(length);
  CKPT_TRY(io::pread_exact(fd, text, kPrefix, name));
  auto header = parse_safetensors_header(as_text(text), size - kPrefix - length);
  if (!header) {
    header.error().subject = name;
    return std::move(header).error();
  }
  header->buffer = kPrefix + length;
  return header;
}

class Reader {
 public:
  /// `indexed`: an index says which file a tensor lies in.
  Reader(tensor::Catalog& catalog, bool indexed) : catalog_(catalog), indexed_(indexed) {}

  /// The tensors of one file join those of the others.
  Result<void> add_file(const std::string& name) {
    const auto index = static_cast<uint32_t>(catalog_.files.size());
    catalog_.files.push_back({name, 0});
    CKPT_TRY_ASSIGN(UniqueFd fd, catalog_.open_file(index));
    CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd.get(), name));
    catalog_.files[index].size = static_cast<uint64_t>(st.st_size);
    if (catalog_.files[index].size < kPrefix) return fail(Code::kCorrupt, name, "is too short for a safetensors file");
    CKPT_TRY_ASSIGN(SafetensorsHeader header, read_header(fd.get(), catalog_.files[index].size, name));
    CKPT_TRY_ASSIGN(auto offsets, sharding_info(header, name));
    for (const auto& pair : header.metadata) {
      if (pair.first.rfind("DCP_", 0) != 0) metadata_[pair.first] = pair.second;
    }
    for (SafetensorsEntry& entry : header.entries) CKPT_TRY(add_entry(entry, header.buffer, index, offsets));
    return {};
  }

  /// A tensor's file by name; empty: not there.
  std::string file_of(const std::string& key) const {
    auto found = by_name_.find(key);
    if (found == by_name_.end()) return "";
    return catalog_.files[catalog_.tensors[found->second].shards[0].where.file].path;
  }
  bool has_sub_byte(const std::string& key) const {
    return std::find(sub_byte_.begin(), sub_byte_.end(), key) != sub_byte_.end();
  }
  const json& metadata() const { return metadata_; }

 private:
  using Offsets = std::unordered_map<std::string, tensor::Shape>;

  /// DCP_SHARDING_INFO of torch's distributed safetensors: where a file's pieces lie in the whole tensors.
  Result<Offsets> sharding_info(const SafetensorsHeader& header, const std::string& name) {
    Offsets out;
    auto found = header.metadata.find("DCP_SHARDING_INFO");
    if (found == header.metadata.end()) return out;
    json doc = !json_nests_at_most(found->second, kMaxJsonDepth) ? json() : json::parse(found->second, nullptr, false);
    if (!doc.is_object()) return fail(Code::kCorrupt, name, "its DCP_SHARDING_INFO is no JSON object");
    for (const auto& item : doc.items()) {
      const json& offsets =
          item.value().is_object() && item.value().contains("saved_offsets") ? item.value()["saved_offsets"] : json();
      if (!offsets.is_array()) return fail(Code::kCorrupt, name, "its DCP_SHARDING_INFO has no saved_offsets");
      for (const json& n : offsets) {
        if (!n.is_number_unsigned()) return fail(Code::kCorrupt, name, "its DCP_SHARDING_INFO has malformed offsets");
        out[item.key()].push_back(n.get<uint64_t>());
      }
    }
    sharded_ = true;
    return out;
  }

  Result<void> add_entry(SafetensorsEntry& entry, uint64_t buffer, uint32_t file, const Offsets& offsets) {
    if (!entry.known) {
      catalog_.unsupported.push_back({entry.name, "dtype " + entry.dtype + " has less than a byte an element"});
      sub_byte_.push_back(entry.name);
      return {};
    }
    tensor::Shard shard;
    shard.offset.assign(entry.shape.size(), 0);
    auto place = offsets.find(entry.name);
    if (place != offsets.end()) {
      if (place->second.size() != entry.shape.size())
        return fail(Code::kCorrupt, catalog_.files[file].path, entry.name + " has saved_offsets of another rank");
      shard.offset = place->second;
    }
    shard.shape = entry.shape;
    shard.where = {file, buffer + entry.begin, entry.end - entry.begin};
    auto [it, added] = by_name_.try_emplace(entry.name, catalog_.tensors.size());
    if (added) {
      catalog_.tensors.emplace_back();
      catalog_.tensors.back().key = entry.name;
      catalog_.tensors.back().dtype = *entry.known;
      catalog_.tensors.back().shape = entry.shape;
    }
    tensor::Tensor& t = catalog_.tensors[it->second];
    if (!added && !indexed_ && place == offsets.end()) return two_models(entry.name, t, file);
    if (t.shape.size() != entry.shape.size() || t.dtype != *entry.known) {
      return fail(Code::kCorrupt, catalog_.files[file].path, entry.name + " has another rank or dtype in another file");
    }
    for (size_t i = 0; i < t.shape.size() && sharded_; ++i) {
      auto end = checked_add(shard.offset[i], shard.shape[i]);
      if (!end) return fail(Code::kCorrupt, catalog_.files[file].path, entry.name + " ends past what can be counted");
      t.shape[i] = std::max(t.shape[i], *end);
    }
    t.shards.push_back(std::move(shard));
    return {};
  }

  /// `model.safetensors` beside `model.fp16.safetensors`: a folder of variants, and nothing says which is meant.
  Error two_models(const std::string& key, const tensor::Tensor& first, uint32_t second) const {
    const std::string& one = catalog_.files[first.shards[0].where.file].path;
    return Error(Code::kUnsupported, catalog_.root.string(),
                 "holds more than one model: both " + one + " and " + catalog_.files[second].path + " have " + key)
        .with_hint("give the file, or the index (.safetensors.index.json), of the one that is wanted");
  }

  tensor::Catalog& catalog_;
  const bool indexed_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<std::string> sub_byte_;
  json metadata_ = json::object();
  bool sharded_ = false;
};

/// `weight_map` of an index: key -> file.
Result<std::map<std::string, std::string>> read_index(const fs::path& path) {
  CKPT_TRY_ASSIGN(std::string text, io::read_file(path, kMaxIndexBytes));
  json doc = !json_nests_at_most(text, kMaxJsonDepth) ? json() : json::parse(text, nullptr, false);
  if (!doc.is_object() || !doc.contains("weight_map") || !doc["weight_map"].is_object()) {
    return fail(Code::kCorrupt, path.string(), "has no weight_map");
  }
  std::map<std::string, std::string> out;
  for (const auto& item : doc["weight_map"].items()) {
    if (!item.value().is_string())
      return fail(Code::kCorrupt, path.string(), "its weight_map has an entry that is no file name");
    std::string file = item.value().get<std::string>();
    if (!is_safe_relative_path(file))
      return fail(Code::kCorrupt, path.string(), "the path \"" + file + "\" leads out of the checkpoint");
    out[item.key()] = std::move(file);
  }
  return out;
}

/// `index`: its name in the folder; empty: the folder has none, and all of its files are one checkpoint.
Result<void> read_folder(const fs::path& path, const std::string& index, Reader& reader, tensor::Catalog& catalog,
                         DamageLog& damage) {
  std::map<std::string, std::string> weights;
  std::vector<std::string> files;
  if (index.empty()) {
    files = files_with(path, is_tensor_file);
  } else {
    CKPT_TRY_ASSIGN(weights, read_index(path / index));
    for (const auto& weight : weights) files.push_back(weight.second);
    std::sort(files.begin(), files.end());
    files.erase(std::unique(files.begin(), files.end()), files.end());
  }
  for (const std::string& file : files) {
    auto added = reader.add_file(file);
    if (added) continue;
    if (!answers_no(added.error().code) && added.error().code != Code::kNotFound) return added;
    damage.add("", file, std::nullopt, added.error());
  }
  for (const auto& weight : weights) {
    std::string there = reader.file_of(weight.first);
    if (there != weight.second && !reader.has_sub_byte(weight.first)) {
      damage.add(weight.first, weight.second, std::nullopt,
                 there.empty() ? "the index names it, the file lacks it"
                               : "lies in another file than the index says: " + there);
    }
  }
  for (const tensor::Tensor& t : catalog.tensors) {
    if (!weights.empty() && weights.count(t.key) == 0)
      catalog.warnings.push_back(t.key + ": in a file, but not in the index");
  }
  return {};
}

}  // namespace

bool recognises_safetensors(const fs::path& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec))
    return !files_with(path, is_tensor_file).empty() || !files_with(path, is_index).empty();
  if (!fs::is_regular_file(path, ec)) return false;
  if (is_tensor_file(path.string()) || is_index(path.filename().string())) return true;
  // Eight bytes of a length that is not absurd, then the header's first brace.
  auto fd = io::open_file(path, O_RDONLY | O_NONBLOCK);
  std::array<std::byte, kPrefix + 1> first{};
  if (!fd || !io::pread_exact(fd->get(), first, 0, "")) return false;
  uint64_t length = 0;
  std::memcpy(&length, first.data(), kPrefix);
  return length <= kMaxSafetensorsHeader && first[kPrefix] == std::byte{'{'};
}

Result<tensor::Catalog> read_safetensors(const fs::path& path, const ReadOptions& options) {
  tensor::Catalog catalog;
  catalog.format = "safetensors";
  std::error_code ec;
  const bool folder = fs::is_directory(path, ec), by_index = !folder && is_index(path.filename().string());
  catalog.root = !by_index ? path : path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<std::string> indexes;
  if (folder) indexes = files_with(path, is_index);
  if (by_index) indexes = {path.filename().string()};
  if (indexes.size() > 1) {
    return Error(Code::kUnsupported, path.string(),
                 "holds several safetensors indexes: " + indexes[0] + ", " + indexes[1])
        .with_hint("give the index of the one that is wanted, or one file");
  }
  DamageLog damage;
  Reader reader(catalog, !indexes.empty());
  if (folder || by_index)
    CKPT_TRY(read_folder(catalog.root, indexes.empty() ? "" : indexes[0], reader, catalog, damage));
  else CKPT_TRY(reader.add_file(path.filename().string()));
  catalog.metadata_json = json({{"__metadata__", reader.metadata()}}).dump(-1, ' ', true);
  return finish_catalog(std::move(catalog), std::move(damage), options);
}

}  // namespace ckpt::formats
