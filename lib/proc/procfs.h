// What /proc says of a process. `parse_` is pure and takes hostile text; `read_` does the I/O. A process that ends in
// between is kNotFound, an unreadable file kPermission.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

/// /proc/PID/stat (proc(5)). The address members are 0 for a reader without PTRACE_MODE_READ.
struct Stat {
  int pid = 0;
  std::string comm;
  char state = '?';  ///< R S D T t Z X I
  int parent = 0, group = 0, session = 0, terminal = 0;
  uint64_t kernel_flags = 0;  ///< PF_*
  uint64_t minor_faults = 0;
  uint64_t start_time = 0;    ///< clock ticks since boot: with the pid it names a process for good
  uint64_t start_code = 0, end_code = 0, start_stack = 0;
  uint64_t start_data = 0, end_data = 0, start_brk = 0;
  uint64_t arg_start = 0, arg_end = 0, env_start = 0, env_end = 0;
  int exit_signal = 0;  ///< what the parent gets at its end
  int exit_status = 0;  ///< of a zombie, as wait(2) gives it; needs PTRACE_MODE_READ
  bool is_zombie() const { return state == 'Z' || state == 'X'; }
  bool is_ending() const { return (kernel_flags & 0x4) != 0 || state == 'Z' || state == 'X'; }  // PF_EXITING
  bool is_kernel_thread() const { return (kernel_flags & 0x200000) != 0; }  // PF_KTHREAD
};
Result<Stat> parse_stat(std::string_view text);
Result<Stat> read_stat(int pid);
Result<Stat> read_thread_stat(int pid, int tid);
/// The process is not there any more, or is on its way out.
bool has_ended(int pid);

/// /proc/PID/status, the members used here. Signal sets are bit masks, bit 0 is signal 1.
struct Status {
  std::string comm;
  char state = '?';  ///< as Stat::state
  int tgid = 0, parent = 0, tracer = 0;
  unsigned uid[4] = {}, gid[4] = {};
  std::vector<unsigned> groups;
  /// Its number, its group's and its session's, in the pid namespace of /proc and in each below that it is in. 0: none.
  std::vector<int> ns_pids, ns_groups, ns_sessions;
  int threads = 0;
  uint64_t pending_private = 0, pending_shared = 0, blocked = 0, ignored = 0, caught = 0;
  uint64_t cap_inheritable = 0, cap_permitted = 0, cap_effective = 0, cap_bounding = 0, cap_ambient = 0;
  bool no_new_privs = false;
  int seccomp = 0;
  unsigned umask = 022;
  bool thp_enabled = true;
  /// Some of its pages are pinned for long (RDMA, registered buffers of an io_uring): devices and the kernel write to
  /// them without its page tables noticing, and nobody tells which they are.
  bool has_pinned_pages = false;
};
Result<Status> parse_status(std::string_view text);
Result<Status> read_status(int pid, int tid);
/// Of many threads; nothing for one that has ended.
Result<std::vector<std::optional<Status>>> read_statuses(int pid, const std::vector<int>& tids);

/// One line of /proc/PID/maps with its VmFlags of smaps.
struct Vma {
  uint64_t start = 0, end = 0;
  int prot = 0;  ///< PROT_*
  bool shared = false;
  uint64_t offset = 0;
  uint64_t device = 0;             ///< as st_dev
  uint64_t inode = 0;
  std::string name;                ///< path, [heap], ... with the kernel's \012 undone
  std::string flags;               ///< "rdwrmr", two letters each; empty when read without smaps
  int protection_key = 0;          ///< pkeys(7); 0 when read without smaps
  bool has_flag(std::string_view flag) const;
};
Result<std::vector<Vma>> parse_maps(std::string_view text);
/// One after the other, in the order of addresses; `take` may keep what it is given.
Result<void> each_mapping(int pid, bool with_flags, const std::function<void(Vma&)>& take);
/// Reads maps; with_flags reads smaps, which walks every page table and so costs about a millisecond a GiB. `expected`:
/// about how many there are, for memory: to grow into it is costly where there are thousands.
Result<std::vector<Vma>> read_maps(int pid, bool with_flags, size_t expected = 0);

/// /proc/PID/fdinfo/N.
struct FdInfo {
  uint64_t position = 0;
  int flags = 0;  ///< O_*, O_CLOEXEC included
  uint64_t eventfd_count = 0;
  bool eventfd_semaphore = false;
  uint64_t signal_mask = 0;
  struct EpollTarget {
    int fd = 0;
    uint32_t events = 0;
    uint64_t data = 0, inode = 0;
  };
  std::vector<EpollTarget> epoll;
  int timer_clock = 0, timer_flags = 0;
  uint64_t timer_ticks = 0, timer_value_ns = 0, timer_interval_ns = 0;
  int locks = 0;  ///< file locks held through this description
  uint64_t inode = 0;    ///< 0: the kernel does not say (before 5.14)
  int mount_id = 0;
  int eventfd_id = -1;   ///< of an eventfd, one for each; -1: the kernel does not say
};
Result<FdInfo> parse_fdinfo(std::string_view text);
Result<FdInfo> read_fdinfo(int pid, int fd);

/// Every open descriptor with the text of its link: "/path", "pipe:[1]", "anon_inode:[eventpoll]".
struct OpenFd {
  int fd = 0;
  std::string link;
  FdInfo info;
};
/// Links alone.
Result<std::vector<OpenFd>> read_fds(int pid);
Result<std::vector<OpenFd>> read_fds_with_info(int pid);

/// /proc/PID/timers.
struct TimerLine {
  int id = 0, signo = 0, notify = 0, tid = 0, clock = 0;
  uint64_t sigval = 0;
};
Result<std::vector<TimerLine>> parse_timers(std::string_view text);
Result<std::vector<TimerLine>> read_timers(int pid);

Result<std::vector<int>> read_threads(int pid);
/// Children of every thread (needs CONFIG_PROC_CHILDREN).
Result<std::vector<int>> read_children(int pid);

/// One process of a tree.
struct TreeEntry {
  int pid = 0;
  int parent = -1;  ///< index in the list, -1: the root
  bool zombie = false;
};
/// A process and all its descendants as they are at the moment of looking, each after its parent.
Result<std::vector<TreeEntry>> read_tree(int root);

/// argv; empty for a kernel thread or a zombie.
Result<std::vector<std::string>> read_cmdline(int pid);
Result<std::vector<uint64_t>> read_auxv(int pid);
/// A small file below /proc/PID without its last newline: "personality", "oom_score_adj" ...
Result<std::string> read_small(int pid, const std::string& name);
/// The text of a link below /proc/PID: "exe", "cwd", "root", "ns/mnt".
Result<std::string> read_link(int pid, const std::string& name);

/// Pid and name for messages: "1234 (python3)".
std::string describe_pid(int pid);

}  // namespace ckpt::proc
