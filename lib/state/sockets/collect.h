// Sockets among the descriptors of a tree: collected first, described together, since two ends make one connection.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lib/state/descriptors/context.h"
#include "lib/state/sockets/capture.h"

namespace ckpt::capture {

class SocketCollector {
 public:
  /// `take_right`: the index of the open file description behind a descriptor that was found in a queue.
  SocketCollector(DescriptorContext& context, std::function<Result<int>(UniqueFd)> take_right);
  /// `theirs`: a duplicate; `index`: of its descriptor in the image.
  void add(const Place& place, UniqueFd theirs, int index);
  /// All of them at once.
  Result<void> settle();
  /// While the tree runs its queues are not looked into: what waits in one may be a descriptor.
  bool may_hold_descriptors() const { return !context_.frozen() && hold_data_; }

 private:
  DescriptorContext& context_;
  SocketCapture sockets_;
  size_t added_ = 0;
  bool hold_data_ = false;
  std::map<int, std::string> names_;  ///< of processes, for messages
};

}  // namespace ckpt::capture
