#include "lib/flash/catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/finish.h"
#include "lib/base/io.h"

namespace ckpt::flash {

namespace {

/// Puts the ranks' parts of tensors together.
class Union {
 public:
  explicit Union(tensor::Catalog& catalog) : catalog_(catalog) {}

  Result<void> add(const LayoutTensor& entry, uint32_t rank, tensor::FileRange where) {
    const auto dtype = tensor::dtype_from_name(entry.dtype);
    if (!dtype) return fail(Code::kUnsupported, entry.key, "dtype " + entry.dtype + " is not written");
    auto [at, added] = by_key_.try_emplace(entry.key, catalog_.tensors.size());
    if (added) {
      tensor::Tensor tensor;
      tensor.key = entry.key;
      tensor.dtype = *dtype;
      tensor.shape = entry.global_shape;
      tensor.path = key_path(entry.path);
      catalog_.tensors.push_back(std::move(tensor));
    }
    tensor::Tensor& tensor = catalog_.tensors[at->second];
    if (tensor.dtype != *dtype || tensor.shape != entry.global_shape)
      return fail(Code::kMismatch, entry.key,
                  fmt::format("rank {} has it with another dtype or global shape than a rank before it", rank));
    for (const tensor::Shard& shard : tensor.shards) {
      if (shard.offset == entry.global_offset && shard.shape == entry.shape) return {};  // a replica
    }
    tensor::Shard shard;
    shard.offset = entry.global_offset;
    shard.shape = entry.shape;
    shard.where = where;
    tensor.shards.push_back(std::move(shard));
    return {};
  }

 private:
  tensor::Catalog& catalog_;
  std::map<std::string, size_t> by_key_;
};

/// `format`: what it is to be written as.
tensor::Catalog empty_catalog(const std::string& format) {
  tensor::Catalog out;
  out.format = format == "torch_dist" ? "torch_dist" : "dcp";
  out.root = "/proc/self/fd";  // a segment is a file of that name to whoever reads the catalog
  return out;
}

/// The number of the segment among the catalog's files.
uint32_t add_file(tensor::Catalog& catalog, const Held& held) {
  catalog.files.push_back({std::to_string(held.segment->fd()), held.segment->shape().segment_bytes});
  return static_cast<uint32_t>(catalog.files.size() - 1);
}

tensor::FileRange place_of(const Held& held, const LayoutTensor& entry, uint32_t file) {
  return {file, held.segment->buffer_offset(held.buffer) + entry.offset, entry.bytes};
}

tensor::Object copy_of(const StoredObject& object) {
  tensor::Object out;
  out.key = object.key;
  out.path = key_path(object.path);
  out.inline_bytes.assign(as_bytes(object.bytes).begin(), as_bytes(object.bytes).end());
  return out;
}

}  // namespace

tensor::KeyPath key_path(const std::vector<Step>& steps) {
  tensor::KeyPath out;
  for (const Step& step : steps)
    out.push_back({static_cast<tensor::PathStep::Kind>(step.kind), step.name, step.number});
  return out;
}

Result<std::string> read_objects(const Held& held) {
  std::string out(held.segment->slot(held.buffer).objects_bytes, 0);
  CKPT_TRY(io::pread_exact(held.segment->fd(), {reinterpret_cast<std::byte*>(out.data()), out.size()},
                           held.segment->objects_offset(held.buffer), "segment"));
  return out;
}

Result<Hash128> hash_of(const Held& held, uint64_t offset, uint64_t length, const Cancel& cancel) {
  constexpr uint64_t kBlock = 512 << 10;
  Xxh3 hash;
  std::vector<std::byte> block(std::min(kBlock, length));
  for (uint64_t at = 0; at < length; at += block.size()) {
    CKPT_TRY(cancel.check());
    block.resize(std::min<uint64_t>(kBlock, length - at));
    CKPT_TRY(io::pread_exact(held.segment->fd(), block, offset + at, "segment"));
    hash.update(block);
  }
  return hash.digest();
}

Result<tensor::Catalog> catalog_of(const std::vector<Held>& ranks, const std::string& format,
                                   std::vector<std::string>& notes) {
  tensor::Catalog out = empty_catalog(format);
  Union tensors(out);
  std::map<std::string, uint32_t> objects;
  for (const Held& held : ranks) {
    const uint32_t file = add_file(out, held);
    for (const LayoutTensor& entry : held.segment->layout().tensors)
      CKPT_TRY(tensors.add(entry, held.rank, place_of(held, entry, file)));
    CKPT_TRY_ASSIGN(const std::string text, read_objects(held));
    CKPT_TRY_ASSIGN(const auto stored, decode_objects(as_bytes(text)));
    for (const StoredObject& object : stored) {
      if (object.kind == ObjectKind::kPrivate) continue;
      const auto at = static_cast<uint64_t>(object.bytes.data() - text.data());
      const tensor::FileRange where{file, held.segment->objects_offset(held.buffer) + at, object.bytes.size()};
      if (object.kind == ObjectKind::kCommon) {
        if (!out.common) out.common = where;
        continue;
      }
      if (objects.try_emplace(object.key, held.rank).second)  // each rank's own is in kRanksFile
        out.objects.push_back(copy_of(object));
    }
  }
  if (format == "safetensors" && !(out.objects.empty() && !out.common)) {
    out.objects.clear();
    out.common.reset();
    notes.push_back(std::string("safetensors files have no place for objects: they are in ") + kRanksFile + " alone");
  }
  return formats::finish_catalog(std::move(out), {}, {});
}

Result<Ownership> Ownership::of(const std::vector<RankRecord>& ranks) {
  Ownership out;
  tensor::Catalog whole = empty_catalog("dcp");
  Union tensors(whole);
  for (const RankRecord& rank : ranks) {
    CKPT_TRY_ASSIGN(const BufferLayout layout, decode_layout(as_bytes(rank.layout)));
    whole.files.push_back({fmt::format("rank {}", rank.rank), layout.data_bytes});
    for (size_t i = 0; i < layout.tensors.size(); ++i) {
      const LayoutTensor& entry = layout.tensors[i];
      CKPT_TRY(tensors.add(entry, rank.rank, {rank.rank, entry.offset, entry.bytes}));
      Owner owner{rank.rank, {}};
      if (i < rank.hashes.size() && !(rank.hashes[i] == Hash128{})) owner.hash = rank.hashes[i];
      out.shards_.try_emplace({entry.key, entry.global_offset, entry.shape}, owner);
    }
    CKPT_TRY_ASSIGN(const auto stored, decode_objects(as_bytes(rank.objects)));
    for (const StoredObject& object : stored) {
      if (object.kind == ObjectKind::kCommon && !out.common_) out.common_.emplace(object.bytes);
      if (object.kind == ObjectKind::kValue && out.objects_.try_emplace(object.key, rank.rank).second)
        whole.objects.push_back(copy_of(object));
    }
  }
  CKPT_TRY_ASSIGN(out.whole_, formats::finish_catalog(std::move(whole), {}, {}));
  return out;
}

const Ownership::Owner* Ownership::owner_of(const LayoutTensor& tensor) const {
  const auto found = shards_.find({tensor.key, tensor.global_offset, tensor.shape});
  return found == shards_.end() ? nullptr : &found->second;
}

uint32_t Ownership::rank_of(const LayoutTensor& tensor) const {
  const Owner* owner = owner_of(tensor);
  return owner == nullptr ? UINT32_MAX : owner->rank;
}

std::optional<Hash128> Ownership::hash_of(const LayoutTensor& tensor) const {
  const Owner* owner = owner_of(tensor);
  return owner == nullptr ? std::nullopt : owner->hash;
}

uint32_t Ownership::rank_of(const StoredObject& object) const {
  const auto found = objects_.find(object.key);
  return found == objects_.end() ? UINT32_MAX : found->second;
}

/// The length before a key keeps two of them apart, whatever is in them.
std::string part_key(const std::string& key, const tensor::Shape& offset, const tensor::Shape& shape) {
  return fmt::format("{}:{}@{}+{}", key.size(), key, fmt::join(offset, "_"), fmt::join(shape, "_"));
}

Result<tensor::Catalog> part_of(const std::vector<Held>& ranks, const std::string& format, const Ownership& owners) {
  tensor::Catalog out = empty_catalog(format);
  Union tensors(out);
  for (const Held& held : ranks) {
    const uint32_t file = add_file(out, held);
    for (LayoutTensor entry : held.segment->layout().tensors) {
      if (owners.rank_of(entry) != held.rank) continue;
      entry.key = part_key(entry);
      entry.path.clear();
      entry.global_shape = entry.shape;
      entry.global_offset.assign(entry.shape.size(), 0);
      CKPT_TRY(tensors.add(entry, held.rank, place_of(held, entry, file)));
    }
    CKPT_TRY_ASSIGN(const std::string text, read_objects(held));
    CKPT_TRY_ASSIGN(const auto stored, decode_objects(as_bytes(text)));
    for (const StoredObject& object : stored) {
      if (object.kind == ObjectKind::kValue && owners.rank_of(object) == held.rank)
        out.objects.push_back(copy_of(object));
    }
  }
  return formats::finish_catalog(std::move(out), {}, {});
}

}  // namespace ckpt::flash
