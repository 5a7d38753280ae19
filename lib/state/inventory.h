// Everything of a process tree that /proc and its descriptors tell from outside, and everything in it that this version
// cannot carry. No thread is stopped and nothing is touched: `check` and the refusals of `dump` come from here.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/base/worker_pool.h"
#include "lib/proc/procfs.h"
#include "lib/state/external/options.h"
#include "lib/state/files/contents.h"
#include "lib/state/mounts/options.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// One reason why a tree cannot be dumped.
struct Blocker {
  std::string subject;  ///< "descriptor 7", "process 12 (sh), mapping 7f00..-7f01.."
  std::string what;     ///< "a socket, which is not supported yet"
  std::string flag;     ///< the flag that would allow it, empty when none does
  bool passes = false;  ///< gone once the processes have run for a moment more, most likely
  std::string text() const;
};

/// One process of the tree, held by a pidfd so that its number cannot come to mean another one.
struct Member {
  proc::TreeEntry entry;
  uint64_t start_time = 0;
  UniqueFd pidfd;  ///< empty for a zombie
};
/// The tree of now. Members of `known` are taken over, so that each keeps its first pidfd.
Result<std::vector<Member>> open_members(const std::vector<proc::TreeEntry>& entries, std::vector<Member> known = {});

struct Inventory;

struct SocketOptions {
  bool tcp_established = false;  ///< connections go with the image, and are held off until it is restored
  bool tcp_close = false;        ///< they come back closed
  bool external_unix = false;    ///< unix sockets with a peer outside connect to it again
};

struct InventoryOptions {
  state::ExternalOptions external;
  uint64_t ghost_limit = uint64_t{1} << 30;  ///< bytes of a deleted file that go with the image
  state::FileContents contents;
  SocketOptions sockets;
  state::ExternalMounts external_mounts;
  bool empty_network = false;  ///< whoever restores it sees to what is in a network namespace
  /// Descriptors and mappings of GPUs are left out: the driver will take them away before the final look.
  bool gpus_leave = false;
  bool ends = true;        ///< the processes will be ended, or stopped
  bool frozen = false;     ///< the tree stands still: contents of pipes and the like are taken
  const Inventory* earlier = nullptr;  ///< of the same tree, made while it ran: spares what is slow to find out again
  /// A look of a moment ago: what the kernel walks all page tables for (advice, NUMA policies) is as it was then where
  /// the mappings are.
  const Inventory* just_before = nullptr;
  /// Threads that look at the processes of a tree side by side; of a tree that runs they are made where there are none.
  WorkerPool* pool = nullptr;

  const Inventory* mappings() const { return earlier != nullptr ? earlier : just_before; }
};

/// Where the pages of a shared memory or a deleted file are read from: `fd`, or the memory of a process that maps it.
struct ContentSource {
  UniqueFd fd;
  int pid = 0;
  int64_t shift = 0;  ///< address in `pid` = offset + shift
};

struct Inventory {
  /// Filled: ids, names, files, maps (guards excepted), descriptors, limits, credentials, scheduling. Not filled: what
  /// only a stopped thread tells (lib/state/inside.h), and the numbers of memory spaces.
  store::TreeImage image;
  /// Of each process's threads, parallel to image.processes[].threads; of a tree that runs only of each first one.
  std::vector<std::vector<proc::Status>> statuses;
  std::vector<std::vector<proc::Vma>> vmas;  ///< of each process, parallel to its maps
  std::vector<std::vector<std::byte>> pipe_contents;  ///< parallel to image.pipes
  std::vector<std::vector<std::byte>> socket_contents;  ///< parallel to image.sockets
  std::vector<std::vector<std::byte>> io_uring_contents;  ///< parallel to image.io_urings
  std::vector<std::vector<std::byte>> aio_contents;  ///< parallel to image.aio_contexts
  std::vector<bool> placed;  ///< of each process: whether mappings have NUMA policies of their own
  std::vector<bool> gpus;    ///< of each process: whether a mapping is_of_gpu
  /// Of each process, with `gpus_leave`: the GPUs' files of which mappings and descriptors are left out.
  std::vector<std::set<std::string>> gpu_files;
  std::vector<UniqueFd> connections;  ///< duplicates of the TCP connections among them
  std::vector<ContentSource> shared_memory;  ///< parallel to image.shared_memory
  /// By device: of a frozen tree the bytes of files in memory, parallel to those of MountedFilesystem::files that
  /// have_bytes.
  std::map<uint64_t, std::vector<ContentSource>> memory_files;
  std::vector<ContentSource> ghosts;  ///< parallel to image.files; of regular files that are deleted, or have_content
  std::set<std::string> outside_pipes;  ///< pipes with both ends in the tree that others have open, too
  std::vector<std::pair<int, int>>
      compared;  ///< pid and descriptor of open files with one name, group by group, in kcmp's order
  std::vector<std::string> further;  ///< parallel to Namespaces::further: "net:[4026532001]"
  std::vector<Blocker> blockers;
  std::vector<std::string> notes;       ///< what a person should know, no obstacle

  /// Index of the process in image.processes, -1: not there.
  int find(int pid) const;
  Blocker blocker(size_t process, const std::string& subject, std::string what, std::string flag = "") const;
  void block(size_t process, const std::string& subject, std::string what, std::string flag = "") {
    blockers.push_back(blocker(process, subject, std::move(what), std::move(flag)));
  }
};

/// Whether a mapping of this name is a GPU's, or of the library of its driver.
bool is_of_gpu(std::string_view mapping);

/// kNotFound, kPermission; kUsage for ckpt itself, kUnsupported for kernel threads.
Result<Inventory> take_inventory(const std::vector<Member>& members, const InventoryOptions& options);

/// As `take_inventory`, of a tree that runs: processes come and go while it is looked at, and what was seen of one that
/// was just changing must not count. Members that end are left out; what stands in the way is what several looks agree
/// on.
Result<Inventory> look_at_running(int root, std::vector<Member>& members, const InventoryOptions& options);

/// False when a mapping that kept its place has other VmFlags than `earlier` says. An inventory made with
/// InventoryOptions::earlier takes them over, because smaps walks every page table (some ms a GiB) and the target
/// stands still for that; asking before and after, while it runs, is as good.
Result<bool> advice_unchanged(const Inventory& earlier);

/// There are some, and a moment later there may be none.
bool all_pass(const std::vector<Blocker>& blockers);

/// One Error of kUnsupported that lists every blocker as a cause; the target is as it was.
Error blocked_error(int pid, const std::vector<Blocker>& blockers);

}  // namespace ckpt::capture
