// Two checkpoints, of whatever formats: do they hold the same?
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "lib/tensor/read.h"

namespace ckpt::model {

/// Compares `left` with `right` tensor by tensor. Thread-safe once `pair_up` was called.
class Comparison {
 public:
  using Note = std::function<void(tensor::Finding)>;
  /// `skip_unreadable`: entries that a reader could not hand out count for nothing; else each is a finding.
  Comparison(const tensor::Catalog& left, const tensor::Catalog& right, bool skip_unreadable, Note note);

  /// Keys, dtypes and shapes; what differs is noted. Afterwards `units` holds what is left to be done.
  void pair_up();

  /// A box of a pair of tensors whose values are compared in one go, or a pair of objects.
  struct Unit {
    uint32_t pair = 0;
    tensor::Region region;  ///< of tensors
    uint64_t bytes = 0;
  };
  const std::vector<Unit>& units() const { return units_; }
  /// Bit for bit. Damage on either side is a finding. `advance` counts bytes and may stop the work.
  Result<void> compare(const Unit& unit, const std::function<Result<void>(uint64_t)>& advance);
  /// After the last unit: a finding for each pair of tensors with other values.
  void finish();
  size_t tensors() const { return tensors_.size(); }

 private:
  struct TensorPair {
    const tensor::Tensor* left;
    const tensor::Tensor* right;
    uint64_t different = 0;  ///< elements
    tensor::Shape first;     ///< of them, in row-major order
  };
  struct ObjectPair {
    const tensor::Object* left;
    const tensor::Object* right;
    bool left_wrapped, right_wrapped;
  };

  /// What a worker reads with. Kept from unit to unit: made anew for each, it would leave the heap in pieces.
  struct Scratch {
    tensor::RegionReader left, right;
    std::vector<std::byte> a, b;
  };
  std::unique_ptr<Scratch> borrow();
  void give_back(std::unique_ptr<Scratch> scratch);

  void differs(const std::string& key, std::string message);
  void note_unreadable();
  void pair_tensors();
  void pair_objects();
  void split(uint32_t pair);
  Result<void> compare_values(TensorPair& pair, const tensor::Region& region, Scratch& scratch,
                              const std::function<Result<void>(uint64_t)>& advance);
  Result<void> compare_objects(const ObjectPair& pair);
  void count(TensorPair& pair, const tensor::Region& region, ByteSpan a, ByteSpan b);

  const tensor::Catalog& left_;
  const tensor::Catalog& right_;
  const bool skip_unreadable_;
  Note note_;
  tensor::FileCache left_files_, right_files_;
  std::unordered_set<std::string_view> unreadable_;  ///< of either side
  std::vector<TensorPair> tensors_;
  std::vector<ObjectPair> objects_;  ///< their units have pair = tensors_.size() + index
  tensor::Object left_common_, right_common_;
  std::vector<Unit> units_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace ckpt::model
