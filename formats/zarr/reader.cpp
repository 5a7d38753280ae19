#include "formats/zarr/reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/folders.h"
#include "formats/megatron/metadata_json.h"
#include "formats/zarr/array_reader.h"
#include "formats/zarr/zarray.h"

namespace ckpt::formats {

namespace fs = std::filesystem;

namespace {

bool ends_with(const std::string& text, std::string_view tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

struct ObjectFile {
  std::string file;
  uint64_t size = 0;
  ObjectPlace place;
};

/// Before 0.8 Megatron cut the last number of a shape of several axes off the file name (formats.md 1.6). It is one
/// more than the largest last offset of the group.
void restore_cut_shapes(std::vector<ObjectFile>& group) {
  uint64_t length = 0;
  for (const ObjectFile& object : group) length = std::max(length, object.place.offset.back() + 1);
  for (ObjectFile& object : group) {
    if (object.place.shape.size() + 1 == object.place.offset.size()) object.place.shape.push_back(length);
  }
}

/// The ShardedObjects of one folder. False: it holds none.
Result<bool> add_objects(const fs::path& folder, tensor::Catalog& catalog, DamageLog& damage) {
  const std::string key = folder.filename().string();
  CKPT_TRY_ASSIGN(auto entries, list_folder(folder));
  std::vector<ObjectFile> group;
  bool any = false;
  for (const fs::directory_entry& entry : entries) {
    std::string name = entry.path().filename().string();
    if (name.rfind("shard_", 0) != 0 || !ends_with(name, ".pt")) continue;
    any = true;
    std::error_code ec;
    auto place = parse_object_place(name.substr(0, name.size() - 3));
    if (!place) {
      damage.add(key, key + "/" + name, std::nullopt, "the name says no place");
    } else if (!entry.is_regular_file(ec)) {
      damage.add(key, key + "/" + name, std::nullopt, "is not a regular file");
    } else {
      group.push_back({key + "/" + name, entry.file_size(ec), *place});
    }
  }
  restore_cut_shapes(group);
  for (ObjectFile& object : group) {
    if (object.size == 0) damage.add(key, object.file, 0, "the object is empty");
    tensor::Object out;
    out.key = key + "/" + object_place_name(object.place);
    out.where = {static_cast<uint32_t>(catalog.files.size()), 0, object.size};
    catalog.files.push_back({std::move(object.file), object.size});
    catalog.objects.push_back(std::move(out));
  }
  return any;
}

void add_common(tensor::Catalog& catalog, DamageLog& damage) {
  std::error_code ec;
  const fs::path path = catalog.root / "common.pt";
  if (!fs::is_regular_file(path, ec)) {
    damage.add("", "common.pt", std::nullopt, "the common state is missing");
    return;
  }
  uint64_t size = fs::file_size(path, ec);
  catalog.common = tensor::FileRange{static_cast<uint32_t>(catalog.files.size()), 0, size};
  catalog.files.push_back({"common.pt", size});
}

}  // namespace

bool recognises_megatron_zarr(const fs::path& path) { return has_megatron_backend(path, "zarr"); }

Result<tensor::Catalog> read_megatron_zarr(const fs::path& path, const ReadOptions& options) {
  CKPT_TRY_ASSIGN(auto metadata, read_megatron_metadata(path));
  if (!metadata) return fail(Code::kCorrupt, path.string(), "has no metadata.json");
  tensor::Catalog catalog;
  catalog.format = "zarr";
  catalog.root = path;
  catalog.metadata_json =
      nlohmann::json({{"metadata_json", nlohmann::json::parse(metadata->json, nullptr, false)}}).dump();
  DamageLog damage;
  ZarrArrays arrays(catalog, damage, options);
  CKPT_TRY_ASSIGN(auto entries, list_folder(path));
  for (const fs::directory_entry& entry : entries) {
    std::error_code ec;
    std::string name = entry.path().filename().string();
    auto status = entry.symlink_status(ec);
    if (fs::is_symlink(status) && entry.is_directory(ec))
      catalog.warnings.push_back(name + ": a link to a folder, not followed");
    if (!fs::is_directory(status) || ends_with(name, ".sync")) continue;
    if (has_entry(entry.path() / ".zarray")) {
      const std::string meta = name + "/.zarray";
      auto text = read_document(path / meta, kMaxZarrDocument);
      CKPT_TRY(
          arrays.add(name, meta, name, text ? parse_zarray(*text, true) : Result<ZarrArray>(std::move(text).error())));
      continue;
    }
    CKPT_TRY_ASSIGN(bool objects, add_objects(entry.path(), catalog, damage));
    if (!objects) catalog.warnings.push_back(name + ": neither a tensor nor objects, left alone");
  }
  arrays.finish();
  add_common(catalog, damage);
  return finish_catalog(std::move(catalog), std::move(damage), options);
}

}  // namespace ckpt::formats
