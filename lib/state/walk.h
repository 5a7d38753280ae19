// The parts of take_inventory, a file each.
#pragma once

#include <sys/stat.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "lib/state/files/table.h"
#include "lib/state/inventory.h"
#include "lib/state/outside.h"
#include "lib/state/shared_memory/table.h"

namespace ckpt::capture {

inline constexpr const char* kOtherNamespace = "another one than ckpt's, which is not supported yet";
inline constexpr const char* kNestedNamespace =
    "another one than that of its tree's first process, which is not supported yet";
/// Missing pages of such a mapping are not zero: somebody has yet to bring them.
inline constexpr const char* kBeingFilled =
    "memory that a lazy restore is still bringing in, or that is under a userfaultfd of the process's own";

inline constexpr const char* kIoUring = "[io_uring]";
inline constexpr const char* kExternalMemoryFlag = "--external-memory copy";

/// VmFlags without those that say what happened to a mapping, not what it is: "uw" is our own write tracking, "sd"
/// soft-dirty.
store::VmFlags lasting_flags(const proc::Vma& vma);

/// What /proc says of one process, whatever the others are: read by any thread, and put together afterwards by one.
struct Seen {
  struct Link {
    std::string path;
    struct stat st {};  ///< of what it leads to; of a file of /proc/PID nothing
  };
  Link exe, cwd, root;
  std::vector<proc::Vma> vmas;
  std::vector<proc::OpenFd> fds;
  std::vector<std::string> apart;  ///< its namespaces that the first process is not in: "net:[4026532001]"
  std::string pids_for_children;   ///< a pid namespace that it is not in itself, and its next child will be: as above
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
  std::optional<std::vector<OtherProcess>> others = {};  ///< other_processes

  /// Index of the further mount namespace that a process is in; -1: that of the first process.
  int mounts_of(size_t process) const;
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
/// Those of the tree's first process, and ckpt's own.
class Namespaces {
 public:
  explicit Namespaces(int first);
  /// Side by side: where those of a process are others than those of the first one, or than ckpt's, which has entered
  /// what it could (namespaces/entered.h).
  void compare(Walk& walk, size_t process) const;
  /// Of a zombie that has numbers of its own in a further pid namespace.
  void compare_pids(Walk& walk, size_t process) const;

 private:
  struct Link {
    std::string name;  ///< "ns/pid"
    std::string first, ours;
  };
  std::vector<Link> links_;
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
