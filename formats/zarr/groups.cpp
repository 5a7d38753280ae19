// Zarr hierarchies of other programs, version 2 and 3: every array below a folder. Its own document counts;
// consolidated metadata adds what has none, and a word where the two differ.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "formats/folders.h"
#include "formats/path_keys.h"
#include "formats/torch_dist/metadata.h"
#include "formats/zarr/array_reader.h"
#include "formats/zarr/hierarchy.h"
#include "formats/zarr/reader.h"
#include "formats/zarr/zarr_json.h"
#include "formats/zarr/zarray.h"
#include "lib/base/json_reader.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxConsolidated = 512 << 20;

class Hierarchy {
 public:
  Hierarchy(tensor::Catalog& catalog, DamageLog& damage, const ReadOptions& options, int version)
      : catalog_(catalog),
        options_(options),
        version_(version),
        document_(version == 2 ? ".zarray" : "zarr.json"),
        arrays_(catalog, damage, options),
        damage_(damage) {}

  Result<void> read() {
    CKPT_TRY_ASSIGN(bool is_array, visit("", root_key()));
    if (!is_array) {
      CKPT_TRY(read_consolidated());
      CKPT_TRY(walk());
      CKPT_TRY(add_consolidated());
    }
    arrays_.finish();
    return {};
  }

 private:
  std::string root_key() const {
    fs::path name = fs::absolute(catalog_.root).lexically_normal();
    if (!name.has_filename()) name = name.parent_path();
    return name.extension() == ".zarr" ? name.stem().string() : name.filename().string();
  }
  std::string document_of(const std::string& folder) const {
    return folder.empty() ? document_ : folder + "/" + document_;
  }
  Result<ZarrArray> parse(std::string_view text) const {
    return version_ == 2 ? parse_zarray(text, false) : parse_zarr_json(text);
  }

  /// Takes the folder if it is an array, which is then not looked into.
  Result<bool> visit(const std::string& folder, const std::string& key) {
    const std::string meta = document_of(folder);
    if (!has_entry(catalog_.root / meta)) return false;
    // A group's document holds those of all arrays below it where they are consolidated.
    auto text =
        read_document(catalog_.root / meta,
                      version_ == 3 ? std::min(options_.max_metadata_bytes, kMaxConsolidated) : kMaxZarrDocument);
    if (text && version_ == 3 && node_type(*text) == "group") {
      if (folder.empty()) group_ = std::move(*text);
      return false;
    }
    if (text && text->size() > kMaxZarrDocument) text = Error(Code::kCorrupt, "", "is larger than the limit");
    if (text) compare(folder, *text);
    CKPT_TRY(arrays_.add(folder, meta, key, text ? parse(*text) : Result<ZarrArray>(std::move(text).error())));
    return true;
  }

  Result<void> walk() {
    std::vector<std::pair<std::string, size_t>> folders = {{"", 0}};
    while (!folders.empty()) {
      const auto [folder, depth] = std::move(folders.back());
      folders.pop_back();
      CKPT_TRY_ASSIGN(auto entries, list_folder(catalog_.root / folder));
      for (const fs::directory_entry& entry : entries) {
        std::error_code ec;
        const auto status = entry.symlink_status(ec);
        const std::string below = (folder.empty() ? "" : folder + "/") + entry.path().filename().string();
        if (fs::is_symlink(status) && entry.is_directory(ec))
          catalog_.warnings.push_back(below + ": a link to a folder, not followed");
        if (!fs::is_directory(status)) continue;
        CKPT_TRY_ASSIGN(bool taken, visit(below, below));
        if (!taken && depth < kMaxFolderDepth) folders.emplace_back(below, depth + 1);
        else if (!taken) catalog_.unsupported.push_back({below, "a folder nested too deep to be read"});
      }
    }
    return {};
  }

  Result<void> read_consolidated() {
    if (version_ == 2) {
      if (!has_entry(catalog_.root / ".zmetadata")) return {};
      CKPT_TRY_ASSIGN(
          group_, read_document(catalog_.root / ".zmetadata", std::min(options_.max_metadata_bytes, kMaxConsolidated)));
    }
    if (group_.empty()) return {};
    auto nodes = version_ == 2 ? consolidated_v2(group_) : consolidated_v3(group_);
    if (!nodes) {
      damage_.add("", version_ == 2 ? ".zmetadata" : "zarr.json", std::nullopt, nodes.error());
      return {};
    }
    for (ZarrNode& node : *nodes) consolidated_.emplace(std::move(node.path), node.json);
    return {};
  }

  void compare(const std::string& folder, std::string_view text) {
    auto found = consolidated_.find(folder);
    if (found == consolidated_.end()) {
      if (!consolidated_.empty() && missing_++ == 0) first_missing_ = folder;
      return;
    }
    if (!same_array(text, found->second) && differing_++ == 0) first_differing_ = folder;
    consolidated_.erase(found);
  }

  /// What is left has no document of its own.
  Result<void> add_consolidated() {
    std::vector<std::string> paths;
    for (const auto& node : consolidated_) paths.push_back(node.first);
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) {
      const std::string meta = version_ == 2 ? ".zmetadata" : "zarr.json";
      if (!is_safe_relative_path(path)) damage_.add(path, meta, std::nullopt, "the path leads out of the checkpoint");
      else CKPT_TRY(arrays_.add(path, meta, path, parse(consolidated_.at(path))));
    }
    if (missing_ > 0) warn(missing_, first_missing_, "not in the consolidated metadata");
    if (differing_ > 0)
      warn(differing_, first_differing_, "described otherwise by the consolidated metadata, which does not count");
    return {};
  }

  void warn(size_t count, const std::string& first, const char* what) {
    catalog_.warnings.push_back(first + (count > 1 ? " and " + std::to_string(count - 1) + " more" : "") + ": " + what);
  }

  tensor::Catalog& catalog_;
  const ReadOptions& options_;
  int version_;
  std::string document_;
  ZarrArrays arrays_;
  DamageLog& damage_;
  std::string group_;  ///< the document that the consolidated metadata points into
  std::unordered_map<std::string, std::string_view> consolidated_;
  size_t missing_ = 0, differing_ = 0;
  std::string first_missing_, first_differing_;
};

/// The attributes of the root, for `inspect`.
std::string attributes_json(const fs::path& root, int version) {
  auto text = read_document(root / (version == 2 ? ".zattrs" : "zarr.json"),
                            version == 2 ? kMaxZarrDocument : kMaxConsolidated);
  if (!text || !json_nests_at_most(*text, 64)) return "";
  const auto attributes =
      nlohmann::json::parse(version == 2 ? std::string_view(*text) : attributes_of(*text), nullptr, false);
  if (!attributes.is_object() || attributes.empty()) return "";
  return nlohmann::json({{"attributes", attributes}}).dump(-1, ' ', true);
}

Result<tensor::Catalog> read_hierarchy(const fs::path& path, const ReadOptions& options, int version) {
  tensor::Catalog catalog;
  catalog.format = version == 2 ? "zarr2" : "zarr3";
  catalog.root = path;
  catalog.metadata_json = attributes_json(path, version);
  DamageLog damage;
  CKPT_TRY(Hierarchy(catalog, damage, options, version).read());
  return finish_catalog(std::move(catalog), std::move(damage), options);
}

bool holds_document(const fs::path& path, const char* document) {
  std::error_code ec;
  fs::directory_iterator it(path, ec), end;
  for (int seen = 0; !ec && it != end && seen < 1000; it.increment(ec), ++seen) {
    if (has_entry(it->path() / document)) return true;
  }
  return false;
}

}  // namespace

bool recognises_zarr2(const fs::path& path) {
  return has_entry(path / ".zarray") || has_entry(path / ".zgroup") || has_entry(path / ".zmetadata") ||
         holds_document(path, ".zarray");
}
bool recognises_zarr3(const fs::path& path) {
  return has_entry(path / "zarr.json") || holds_document(path, "zarr.json");
}

Result<tensor::Catalog> read_zarr2(const fs::path& path, const ReadOptions& options) {
  return read_hierarchy(path, options, 2);
}
Result<tensor::Catalog> read_zarr3(const fs::path& path, const ReadOptions& options) {
  return read_hierarchy(path, options, 3);
}

}  // namespace ckpt::formats
