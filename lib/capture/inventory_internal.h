// The parts of take_inventory, a file each.
#pragma once

#include <sys/stat.h>

#include <map>
#include <set>
#include <string>

#include "lib/capture/inventory.h"

namespace ckpt::capture {

/// Interns files by path, so that each name is described once; of a deleted file with several names the first has the bytes.
class FileTable {
 public:
  FileTable(Inventory& out, uint64_t ghost_limit) : out_(out), ghost_limit_(ghost_limit) {}
  /// The index of a file that was added before under this path, or -1.
  int find(const std::string& path, uint64_t inode) const;
  /// The index of a file that is still what its path names, or was deleted for good. `st` is of the open or mapped file
  /// itself, `access` a link below /proc that opens it. kAnswerNo: replaced, out of reach, too large; the message says which.
  Result<int> add(const std::string& path, const struct stat& st, const std::string& access);

 private:
  Result<int> add_deleted(const std::string& path, const struct stat& st, const std::string& access);
  int append(const std::string& path, const struct stat& st);

  Inventory& out_;
  uint64_t ghost_limit_;
  std::map<std::pair<std::string, uint64_t>, int> by_path_;  ///< path and inode
  std::set<std::pair<uint64_t, uint64_t>> ghosts_;           ///< device and inode of what has no name any more
};

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

 private:
  struct View {
    int pid;
    uint64_t start, offset, size;
  };
  int append(store::SharedMemory::Kind kind, uint64_t device, uint64_t inode);
  void describe(int index, int fd);

  Inventory& out_;
  std::map<std::pair<uint64_t, uint64_t>, int> by_inode_;
  std::map<int, std::vector<View>> views_;  ///< of objects without a descriptor
};

inline constexpr const char* kOtherNamespace = "another one than ckpt's, which is not supported yet";
/// Missing pages of such a mapping are not zero: somebody has yet to bring them.
inline constexpr const char* kBeingFilled = "memory that a lazy restore is still bringing in, or that is under a userfaultfd of the process's own";

inline constexpr const char* kIoUring = "[io_uring]";

/// VmFlags without those that say what happened to a mapping, not what it is: "uw" is our own write tracking, "sd" soft-dirty.
std::vector<std::string> lasting_flags(const proc::Vma& vma);

/// What /proc says of one process, whatever the others are: read by any thread, and put together afterwards by one.
struct Seen {
  struct Link {
    std::string path;
    struct stat st {};  ///< of what it leads to; of a file of /proc/PID nothing
  };
  Link exe, cwd, root;
  std::vector<proc::Vma> vmas;
  std::vector<proc::OpenFd> fds;
  std::vector<Blocker> blockers;
};

/// What the parts have in common.
struct Walk {
  const std::vector<Member>& members;
  const InventoryOptions& options;
  FileTable& files;
  SharedMemoryTable& shared_memory;
  Inventory& out;
  WorkerPool* pool;  ///< may be null
  std::vector<Seen> seen;

  bool is_zombie(size_t process) const { return members[process].entry.zombie; }
  /// As Inventory::block, in a look at this process that goes side by side with those at others.
  void block(size_t process, const std::string& subject, std::string what, std::string flag = "") {
    seen[process].blockers.push_back(out.blocker(process, subject, std::move(what), std::move(flag)));
  }
  /// What stands in the way, in the order of the processes.
  void collect_blockers();
};

/// Fills ProcessImage::{memory,descriptors,folders,handlers}_of.
void inventory_sharing(Walk& walk);
/// Fills ProcessImage::outside_{session,group}.
void inventory_leaders(Walk& walk);
/// ckpt's own, to compare with.
class Namespaces {
 public:
  Namespaces();
  /// Side by side: where those of a process are others.
  void compare(Walk& walk, size_t process) const;

 private:
  std::vector<std::pair<std::string, std::string>> links_;  ///< "ns/pid" and what it leads to
};
/// Side by side.
Result<void> inventory_threads(Walk& walk, size_t process);
/// Side by side: fills Seen::vmas.
Result<void> look_at_maps(Walk& walk, size_t process);
/// Takes Seen::vmas.
Result<void> inventory_maps(Walk& walk, size_t process);
/// System V objects, and what stands against taking them. After the mappings of every process.
Result<void> inventory_ipc(Walk& walk);
/// Of the whole tree: open file descriptions may be shared. Takes Seen::fds.
Result<void> inventory_descriptors(Walk& walk);

}  // namespace ckpt::capture
