// Shared memory of a tree, each object described once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/procfs.h"
#include "lib/state/shared_memory/record.h"
#include "lib/state/system_v_ipc/record.h"

namespace ckpt::capture {

struct Inventory;

/// Interns shared memory by device and inode.
class SharedMemoryTable {
 public:
  explicit SharedMemoryTable(Inventory& out) : out_(out) {}
  /// A memfd that is open as /proc/PID/fd/N.
  Result<int> add_memfd(const std::string& link, const std::string& access);
  /// A mapping of a memfd, of a System V segment or of shared anonymous memory in process `pid`.
  Result<int> add_mapping(int pid, const proc::Vma& vma);
  /// A System V segment, mapped before or not.
  Result<void> add_segment(const store::SharedSegment& segment);
  /// After the last: objects that only the processes' memory can be read through, since no descriptor could be had.
  void find_sources();
  /// Indices of all of them, by device and number of the inode; those of System V segments have a device of their own.
  const std::map<std::pair<uint64_t, uint64_t>, int>& by_inode() const { return by_inode_; }

 private:
  struct View {
    int pid;
    uint64_t start, offset, size;
  };
  int append(store::SharedMemory::Kind kind, uint64_t device, uint64_t inode);
  void describe(int index, int fd);
  Result<void> take_attributes(int index, const std::string& access);

  Inventory& out_;
  std::map<std::pair<uint64_t, uint64_t>, int> by_inode_;
  std::map<int, std::vector<View>> views_;  ///< of objects without a descriptor
};

}  // namespace ckpt::capture
