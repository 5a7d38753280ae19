// Pipes and named pipes of a tree, and what is in them.
#pragma once

#include <map>
#include <utility>

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

class PipeCollector {
 public:
  explicit PipeCollector(DescriptorContext& context) : context_(context) {}
  /// Each fills kind and state of `d`, of a frozen tree with the content; false: a blocker was noted instead.
  Result<bool> take_pipe(const Place& place, store::Descriptor& d);
  Result<bool> take_fifo(const Place& place, const struct stat& st, store::Descriptor& d);
  /// Once all descriptors are there: which pipes are the tree's own. `may_be_in_flight`: the other end of one may wait
  /// in a queue that was not looked into.
  Result<void> settle(bool may_be_in_flight);

 private:
  struct State {
    int index;
    bool read;  ///< its content is here
  };
  Result<bool> join(const Place& place, std::pair<uint64_t, uint64_t> inode, store::Descriptor& d);
  Result<void> read(const Place& place, size_t index);

  DescriptorContext& context_;
  std::map<int, Place> places_;  ///< a descriptor of each pipe
  std::map<std::pair<uint64_t, uint64_t>, State> pipes_;  ///< by device and inode
};

}  // namespace ckpt::capture
