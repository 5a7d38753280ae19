// `__<rank>.metadata`: each rank's own view, joined.
#include <algorithm>
#include <iterator>
#include <tuple>

#include "formats/torch_dist/metadata.h"

namespace ckpt::formats {

namespace {

/// Of shards of the same box the first one stays; how many went.
uint64_t drop_copies(std::vector<tensor::Shard>& shards) {
  auto box = [](const tensor::Shard& shard) { return std::tie(shard.offset, shard.shape); };
  std::stable_sort(shards.begin(), shards.end(), [&](const auto& a, const auto& b) { return box(a) < box(b); });
  const auto end =
      std::unique(shards.begin(), shards.end(), [&](const auto& a, const auto& b) { return box(a) == box(b); });
  const auto dropped = static_cast<uint64_t>(shards.end() - end);
  shards.erase(end, shards.end());
  return dropped;
}

}  // namespace

Result<void> RankMetadata::add(DcpMetadata next) {
  std::vector<uint32_t> files;
  for (std::string& path : next.paths) {
    auto [it, added] = paths_.try_emplace(path, static_cast<uint32_t>(all_.paths.size()));
    if (added) all_.paths.push_back(std::move(path));
    files.push_back(it->second);
  }
  for (DcpTensor& t : next.tensors) {
    for (tensor::Shard& shard : t.tensor.shards) {
      if (shard.item.length != 0) shard.item.file = files[shard.item.file];
    }
    auto [it, added] = tensors_.try_emplace(t.tensor.key, all_.tensors.size());
    if (added) {
      all_.tensors.push_back(std::move(t));
      continue;
    }
    tensor::Tensor& mine = all_.tensors[it->second].tensor;
    if (mine.dtype != t.tensor.dtype || mine.shape != t.tensor.shape) {
      return fail(Code::kCorrupt, "", t.tensor.key + " has another dtype or shape in the metadata of another rank");
    }
    std::move(t.tensor.shards.begin(), t.tensor.shards.end(), std::back_inserter(mine.shards));
  }
  for (tensor::Object& object : next.objects) {
    object.where.file = files[object.where.file];
    if (objects_.try_emplace(object.key, all_.objects.size()).second) {
      all_.objects.push_back(std::move(object));
    } else if (object_copies_++ == 0) {
      example_ = object.key;
    }
  }
  for (std::string& key : next.encoded_objects) all_.encoded_objects.push_back(std::move(key));
  std::move(next.unsupported.begin(), next.unsupported.end(), std::back_inserter(all_.unsupported));
  for (std::string& text : next.warnings) all_.warnings.push_back(std::move(text));
  for (tensor::Finding& finding : next.damage) all_.damage.push_back(std::move(finding));
  all_.has_mcore_data = all_.has_mcore_data || next.has_mcore_data;
  if (all_.version.empty()) all_.version = std::move(next.version);
  return {};
}

DcpMetadata RankMetadata::take() {
  uint64_t copies = 0;
  for (DcpTensor& t : all_.tensors) copies += drop_copies(t.tensor.shards);
  if (copies > 0)
    all_.warnings.push_back(std::to_string(copies) +
                            " chunks were saved by several ranks: that of the lowest rank counts");
  if (object_copies_ > 0) {
    all_.warnings.push_back(std::to_string(object_copies_) + " objects were saved by several ranks (" + example_ +
                            " and so on): that of the lowest rank counts");
  }
  for (auto* list : {&all_.warnings, &all_.encoded_objects}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  auto place = [](const tensor::Unreadable& entry) { return std::tie(entry.key, entry.why); };
  auto& left_out = all_.unsupported;
  std::sort(left_out.begin(), left_out.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  left_out.erase(
      std::unique(left_out.begin(), left_out.end(), [&](const auto& a, const auto& b) { return place(a) == place(b); }),
      left_out.end());
  return std::move(all_);
}

}  // namespace ckpt::formats
