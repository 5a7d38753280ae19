// What a process could still learn of its children by wait(2).
#pragma once

#include <vector>

#include "lib/proc/call_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// Asked of a thread of the parent; nothing is taken.
class ChildQuestions {
 public:
  ChildQuestions(proc::CallList& calls, const store::TreeImage& tree, size_t parent);
  /// Fills `wait_status` of the children.
  void take(const proc::CallList& calls, store::TreeImage& tree) const;

 private:
  std::vector<int> children_;
  std::vector<size_t> calls_;  ///< parallel to them
};

}  // namespace ckpt::capture
