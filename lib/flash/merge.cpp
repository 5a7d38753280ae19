#include "lib/flash/merge.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cstdio>

#include "formats/format.h"
#include "formats/torch_dist/record.h"
#include "lib/base/io.h"

namespace ckpt::flash {

namespace fs = std::filesystem;

namespace {

/// Those with bytes.
std::vector<const tensor::Shard*> stored(const tensor::Tensor& tensor) {
  std::vector<const tensor::Shard*> out;
  for (const tensor::Shard& shard : tensor.shards) {
    if (shard.where.length > 0) out.push_back(&shard);
  }
  return out;
}

}  // namespace

bool is_written_together(const std::string& format) { return format == "dcp" || format == "torch_dist"; }

Error not_written_together(const std::string& format) {
  return Error(Code::kUnsupported, format, "is not written by several nodes")
      .with_hint("--to dcp or torch_dist; ckpt convert makes the others of it");
}

Result<void> Merge::take(const fs::path& part, uint32_t node) {
  CKPT_TRY_ASSIGN(const tensor::Catalog catalog, formats::open_checkpoint(part, {}));
  if (catalog.format != format_)
    return Error(Code::kMismatch, part.string(), fmt::format("is {}, and the whole {}", catalog.format, format_))
        .with_hint("the agents of all nodes need the same --to");
  const bool has_common = catalog.common.has_value();  // of all ranks one is written, with the metadata
  std::vector<std::string> names;
  for (size_t i = 0; i < catalog.files.size(); ++i) names.push_back(fmt::format("__{}_{}.distcp", node, i));
  for (const tensor::Tensor& tensor : catalog.tensors) {
    for (const tensor::Shard& shard : tensor.shards)
      shards_[tensor.key] = {names[shard.item.file], shard.item.offset, shard.item.length};
  }
  for (const tensor::Object& object : catalog.objects) {
    if (object.inline_bytes.empty())
      objects_[object.key] = {names[object.where.file], object.where.offset, object.where.length};
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (has_common && catalog.common->file == i) continue;
    const fs::path from = part / catalog.files[i].path;
    if (::rename(from.c_str(), (staged_ / names[i]).c_str()) != 0) return sys_error(from.string(), "cannot move");
  }
  return {};
}

Result<void> Merge::write_metadata(std::vector<std::string>& notes) const {
  CKPT_TRY(write_index());
  if (!is_megatron()) return {};
  if (!owners_.common()) notes.push_back(torch_dist::kNoCommonState);
  CKPT_TRY(write_file("common.pt", owners_.common() ? *owners_.common() : torch_dist::empty_dict_file()));
  return write_file("metadata.json", torch_dist::kMetadataJson);
}

const char* Merge::last_file() const { return is_megatron() ? "metadata.json" : ".metadata"; }

Result<void> Merge::write_file(const char* name, const std::string& text) const {
  const fs::path path = staged_ / name;
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0666));
  return io::write_all(fd.get(), as_bytes(text), path.string());
}

Result<void> Merge::write_index() const {
  const fs::path path = staged_ / ".metadata";
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0666));
  torch_dist::MetadataWriter out(
      [&](std::string_view text) { return io::write_all(fd.get(), as_bytes(text), path.string()); });
  const tensor::Catalog& whole = owners_.whole();
  std::vector<std::pair<std::string_view, const tensor::KeyPath*>> keys;
  for (const tensor::Tensor& tensor : whole.tensors) {
    const auto pieces = stored(tensor);
    CKPT_TRY(out.tensor(tensor.key, tensor.dtype, tensor.shape, pieces.size(), [&](size_t i) {
      return tensor::Region{pieces[i]->offset, pieces[i]->shape};
    }));
    keys.emplace_back(tensor.key, &tensor.path);
  }
  for (const tensor::Object& object : whole.objects) {
    CKPT_TRY(out.object(object.key));
    keys.emplace_back(object.key, &object.path);
  }
  if (is_megatron()) keys.clear();  // its keys are not nested
  CKPT_TRY(out.begin_places(torch_dist::nested_keys(std::move(keys))));
  CKPT_TRY(write_places(out));
  return out.finish();
}

Result<void> Merge::write_places(torch_dist::MetadataWriter& out) const {
  const tensor::Catalog& whole = owners_.whole();
  for (const tensor::Tensor& tensor : whole.tensors) {
    const auto pieces = stored(tensor);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto place = shards_.find(part_key(tensor.key, pieces[i]->offset, pieces[i]->shape));
      if (place == shards_.end()) return fail(Code::kCorrupt, tensor.key, "is missing in the part of its node");
      CKPT_TRY(out.tensor_place(tensor.key, pieces[i]->offset, i, place->second));
    }
  }
  for (const tensor::Object& object : whole.objects) {
    const auto place = objects_.find(object.key);
    if (place == objects_.end()) return fail(Code::kCorrupt, object.key, "is missing in the part of its node");
    CKPT_TRY(out.object_place(object.key, place->second));
  }
  return {};
}

}  // namespace ckpt::flash
