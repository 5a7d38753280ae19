// The parts of take_inventory, a file each.
#pragma once

#include <string>
#include <unordered_map>

#include "lib/capture/inventory.h"

namespace ckpt::capture {

/// Interns files by path, so that each is described once.
class FileTable {
 public:
  explicit FileTable(std::vector<store::FileIdentity>& files) : files_(files) {}
  /// The index of a file that was added before under this path, or -1.
  int find(const std::string& path, uint64_t inode) const;
  /// The index of a file that is still what its path names. kAnswerNo: deleted, replaced or out of reach; the message says
  /// which. `st` is of the open or mapped file itself.
  Result<int> add(const std::string& path, const struct stat& st);

 private:
  std::vector<store::FileIdentity>& files_;
  std::unordered_map<std::string, int> by_path_;
};

/// VmFlags without those that say what happened to a mapping, not what it is: "uw" is our own write tracking, "sd" soft-dirty.
std::vector<std::string> lasting_flags(const proc::Vma& vma);

Result<void> inventory_maps(int pid, const InventoryOptions& options, FileTable& files, Inventory& out);
Result<void> inventory_descriptors(int pid, int pidfd, const InventoryOptions& options, FileTable& files, Inventory& out);
Result<void> inventory_threads(int pid, Inventory& out);

}  // namespace ckpt::capture
