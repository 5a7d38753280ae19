// The descriptors of a tree: open file descriptions that are shared are found, and each is handed to its kind, whose
// folder (lib/state/KIND) has the code.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/state/descriptors/context.h"
#include "lib/state/io_uring/capture.h"
#include "lib/state/pipes/capture.h"
#include "lib/state/posix_queues/collect.h"
#include "lib/state/sockets/collect.h"
#include "lib/state/terminals/collect.h"
#include "lib/state/watches/collect.h"

namespace ckpt::capture {

class DescriptorInventory {
 public:
  explicit DescriptorInventory(Walk& walk);
  Result<void> run();

 private:
  using Descriptor = store::Descriptor;

  void list();
  Result<void> find_shared();
  Result<std::vector<bool>> sort_by_kernel(std::vector<size_t>& group, bool sorted_before) const;
  void join_group(size_t at);
  Result<void> add(size_t at);
  Result<int> find_or_describe(size_t at);
  Result<void> take_locks(const Place& place, int index);
  Result<void> take_lease(const Place& place, const store::FileLock& lease, store::Descriptor& descriptor);
  Result<int> take_right(UniqueFd fd);
  /// Fills kind and state. False: a blocker was noted instead.
  Result<bool> classify(const Place& place, Descriptor& d);
  Result<bool> classify_anonymous(const Place& place, Descriptor& d);

  DescriptorContext context_;
  Inventory& out_;
  std::deque<Place> places_;
  /// Places that may have one description (the same link), as indices; groups of several in the order that kcmp(2)
  /// gives.
  std::unordered_map<std::string, std::vector<size_t>> groups_;
  PipeCollector pipes_;
  PosixQueueCollector posix_queues_;
  WatchCollector watches_;
  TerminalCollector terminals_;
  SocketCollector sockets_;
  UringCollector io_urings_;
  UniqueFd own_pidfd_;
  std::vector<UniqueFd> rights_;  ///< found in flight
};

}  // namespace ckpt::capture
