// POSIX message queues among the descriptors of a tree: each queue once, however many descriptors lead to it.
#pragma once

#include <map>

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

class PosixQueueCollector {
 public:
  explicit PosixQueueCollector(DescriptorContext& context) : context_(context) {}
  /// Whether a regular file is one.
  Result<bool> holds(const Place& place, const struct stat& st);
  /// Fills kind and state of `d`; false: a blocker was noted instead.
  Result<bool> take(const Place& place, store::Descriptor& d);

 private:
  DescriptorContext& context_;
  std::map<uint64_t, bool> devices_;  ///< whether a device is a file system of queues
  std::map<uint64_t, int> queues_;    ///< by inode
};

}  // namespace ckpt::capture
