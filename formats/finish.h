// What every reader does at the end: order, duplicate names, shards that tile, damage as an error or as findings.
#pragma once

#include "formats/format.h"

namespace ckpt::formats {

/// Notes damage, up to a number that a person can still use; the rest is counted in one last finding by
/// `finish_catalog`.
class DamageLog {
 public:
  void add(std::string key, std::string file, std::optional<uint64_t> offset, std::string message);
  /// An Error about `key` as a finding; its subject becomes the file where `file` is empty.
  void add(std::string key, std::string file, std::optional<uint64_t> offset, const Error& error);
  void append(const DamageLog& other);
  bool empty() const { return findings_.empty(); }

 private:
  friend Result<tensor::Catalog> finish_catalog(tensor::Catalog, DamageLog, const ReadOptions&);
  static constexpr size_t kMax = 1000;
  std::vector<tensor::Finding> findings_;
  uint64_t more_ = 0;
};

/// Sorts tensors and objects, refuses two of one name, checks that the shards of every tensor tile it. Damage:
/// kCorrupt, or Catalog::damage with `tolerate_damage`.
Result<tensor::Catalog> finish_catalog(tensor::Catalog catalog, DamageLog damage, const ReadOptions& options);

}  // namespace ckpt::formats
