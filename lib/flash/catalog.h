// The ranks' memory as one checkpoint, and which node writes which part of it where ranks are on several.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "lib/flash/ledger.h"
#include "lib/flash/persist.h"
#include "lib/tensor/catalog.h"

namespace ckpt::flash {

/// Of ranks that are all here. The segments must outlive it. kMismatch: the ranks contradict each other (named).
/// kCorrupt: a tensor has a hole.
Result<tensor::Catalog> catalog_of(const std::vector<Held>& ranks, const std::string& format,
                                   std::vector<std::string>& notes);

/// Of what several ranks have the lowest writes its own.
class Ownership {
 public:
  /// `ranks`: all of the job, in the order of their numbers. Errors as above.
  static Result<Ownership> of(const std::vector<RankRecord>& ranks);

  /// All tensors and their shards; the file of a shard's place is the rank that writes it.
  const tensor::Catalog& whole() const { return whole_; }
  /// Who writes it; UINT32_MAX: nobody has said that it has such a thing.
  uint32_t rank_of(const LayoutTensor& tensor) const;
  uint32_t rank_of(const StoredObject& object) const;
  /// Of the bytes that are written; nullopt: it has not been said.
  std::optional<Hash128> hash_of(const LayoutTensor& tensor) const;
  /// Megatron's common state, of the lowest rank that has one.
  const std::optional<std::string>& common() const { return common_; }

 private:
  Ownership() = default;
  struct Owner {
    uint32_t rank;
    std::optional<Hash128> hash;
  };
  const Owner* owner_of(const LayoutTensor& tensor) const;
  tensor::Catalog whole_;
  std::map<std::tuple<std::string, tensor::Shape, tensor::Shape>, Owner> shards_;
  std::map<std::string, uint32_t> objects_;
  std::optional<std::string> common_;
};

/// What a part calls a shard, which is a tensor of its own there.
std::string part_key(const std::string& key, const tensor::Shape& offset, const tensor::Shape& shape);
inline std::string part_key(const LayoutTensor& tensor) {
  return part_key(tensor.key, tensor.global_offset, tensor.shape);
}

/// What ranks of this node write of a checkpoint of all, without the common state.
Result<tensor::Catalog> part_of(const std::vector<Held>& ranks, const std::string& format, const Ownership& owners);

tensor::KeyPath key_path(const std::vector<Step>& steps);

Result<std::string> read_objects(const Held& held);
/// Of a range of the segment.
Result<Hash128> hash_of(const Held& held, uint64_t offset, uint64_t length, const Cancel& cancel);

}  // namespace ckpt::flash
