#include "lib/model/verify/structure.h"

#include <algorithm>
#include <map>

#include "formats/megatron/metadata_json.h"
#include "lib/base/io.h"

namespace ckpt::model {

namespace {

constexpr uint64_t kMaxPadding = 4096;  ///< between items: so far a writer goes to align one

}  // namespace

/// Every place of a ShardedObject's grid is there once (twins were refused when the catalog was made).
void check_object_grids(const tensor::Catalog& catalog, const std::function<bool(std::string_view key)>& wanted,
                        const Note& note) {
  if (catalog.format != "zarr" && catalog.format != "torch_dist") return;
  std::map<std::pair<std::string, std::vector<uint64_t>>, uint64_t> groups;
  for (const tensor::Object& object : catalog.objects) {
    if (wanted && !wanted(object.key)) continue;
    size_t slash = object.key.rfind('/');
    auto place = slash == std::string::npos
                     ? std::nullopt
                     : formats::parse_object_place(std::string_view(object.key).substr(slash + 1));
    if (!place || place->offset.size() != place->shape.size()) {
      note({object.key, "", std::nullopt, "its name says no place (Megatron wants <key>/shard_<offset>_<shape>)",
            false});
      continue;
    }
    ++groups[{object.key.substr(0, slash), place->shape}];
  }
  for (const auto& [group, count] : groups) {
    auto wanted = tensor::element_count(group.second);
    if (wanted != count) {
      note({group.first, "", std::nullopt,
            std::to_string(count) + " of " + (wanted ? std::to_string(*wanted) : "too many") +
                " shards of the object are there",
            false});
    }
  }
}

namespace {

bool all_zero(tensor::FileCache& files, uint32_t file, uint64_t offset, uint64_t length, const std::string& name) {
  std::vector<std::byte> bytes(length);
  auto fd = files.open(file);
  if (!fd || !io::pread_exact((*fd)->get(), bytes, offset, name)) return false;
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

/// Items may be aligned with zeros before them; anything else between them is nobody's.
void check_item_gaps(const tensor::Catalog& catalog, tensor::FileCache& files, const Note& note) {
  // Of a tensor that is not read nobody knows where its items lie.
  if ((catalog.format != "torch_dist" && catalog.format != "dcp") || !catalog.unsupported.empty()) return;
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> used(catalog.files.size());
  auto use = [&](const tensor::FileRange& range) {
    if (range.length != 0 && range.file < used.size())
      used[range.file].push_back({range.offset, range.offset + range.length});
  };
  for (const tensor::Tensor& t : catalog.tensors) {
    for (const tensor::Shard& shard : t.shards) use(shard.item);
  }
  for (const tensor::Object& object : catalog.objects) use(object.where);
  for (const tensor::FileRange& item : catalog.empty_items) use(item);
  if (catalog.common) use(*catalog.common);
  for (uint32_t file = 0; file < used.size(); ++file) {
    const std::string& name = catalog.files[file].path;
    if (used[file].empty() || catalog.files[file].size == 0) continue;
    std::sort(used[file].begin(), used[file].end());
    used[file].push_back({catalog.files[file].size, catalog.files[file].size});
    uint64_t end = 0;
    for (const auto& [from, to] : used[file]) {
      if (from > end && (from - end >= kMaxPadding || !all_zero(files, file, end, from - end, name))) {
        note({"", name, end, "nothing refers to the " + std::to_string(from - end) + " bytes from here", true});
      }
      end = std::max(end, to);
    }
  }
}

}  // namespace ckpt::model
