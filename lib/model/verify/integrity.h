// Hashes of files that a checkpoint comes with: Megatron's integrity.json, a manifest of ours.
#pragma once

#include <atomic>
#include <functional>
#include <unordered_set>

#include "lib/model/verify/manifest.h"

namespace ckpt::model {

/// `check` may be called by several threads at once, after `collect`.
class FileHashes {
 public:
  using Note = std::function<void(tensor::Finding)>;

  /// From integrity.json of a Megatron checkpoint, where there is one, and from `manifest` unless null; both must stay.
  /// Files of the catalog that are missing, have another size or are not listed are noted.
  Result<void> collect(const tensor::Catalog& catalog, const Manifest* manifest, const Note& note);

  /// Units of work.
  size_t size() const { return units_.size(); }
  uint64_t bytes(size_t index) const { return units_[index].length; }
  /// Damage becomes a finding. `advance` counts bytes and may stop the work.
  Result<void> check(size_t index, const Note& note, const std::function<Result<void>(uint64_t)>& advance);
  /// Is every byte of this file under a hash?
  bool covers(const std::string& file) const { return covered_.count(file) != 0; }
  uint64_t checked() const { return checked_; }

 private:
  struct Unit {
    uint32_t file = 0;
    uint64_t offset = 0, length = 0;
    HashKind kind = HashKind::kSha256;
    std::string wanted;
    const char* source = nullptr;  ///< null: the manifest
    bool whole = true;
  };
  Result<void> read_integrity(const Note& note);
  void take_manifest(const tensor::Catalog& catalog, const Manifest& manifest, const Note& note);
  std::optional<uint64_t> add_file(const std::string& name, const std::string& source, const Note& note);

  tensor::Catalog files_;  ///< the listed files, to be opened as a catalog's own are
  std::string manifest_name_;
  std::vector<Unit> units_;
  std::unordered_set<std::string> covered_;
  std::atomic<uint64_t> checked_{0};
};

}  // namespace ckpt::model
