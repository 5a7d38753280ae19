// What an image of a process tree says, beside its memory: the description that `capture` fills from live processes, that
// the manifest holds as JSON a person can read, and that `rebuild` makes processes from. Numbers are the kernel's own
// (x86-64 Linux); addresses are the target's, never dereferenced here. man/ckpt-image.5 documents the JSON form, whose
// members have the names of the fields below.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/store/device_image.h"
#include "lib/store/gpu_image.h"
#include "lib/store/ipc_image.h"
#include "lib/store/lock_image.h"
#include "lib/store/placement_image.h"
#include "lib/store/seccomp_image.h"
#include "lib/store/socket_image.h"
#include "lib/store/terminal_image.h"
#include "lib/store/watch_image.h"

namespace ckpt::store {

/// struct user_regs_struct of <sys/user.h>, as PTRACE_GETREGSET NT_PRSTATUS gives it: 27 registers in that order.
/// A thread stopped in a system call has orig_rax >= 0 and rax = -ERESTART*; capture leaves that as it is, so that the
/// kernel itself decides on resume (`Thread::restart` says what the kernel can no longer know).
struct Registers {
  std::array<uint64_t, 27> value{};
  bool operator==(const Registers&) const = default;
};
/// Names in the order of `Registers::value`: r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs
/// eflags rsp ss fs_base gs_base ds es fs gs.
extern const std::array<const char*, 27> kRegisterNames;

/// A queued signal: siginfo_t as PTRACE_PEEKSIGINFO gives it (128 bytes), kept as hex in the manifest.
struct QueuedSignal {
  int signo = 0;
  std::vector<uint8_t> siginfo;
  bool operator==(const QueuedSignal&) const = default;
};

struct SignalAction {
  int signo = 0;
  uint64_t handler = 0;   ///< 0 SIG_DFL, 1 SIG_IGN, else an address
  uint64_t flags = 0;     ///< SA_*, SA_RESTORER included
  uint64_t restorer = 0;
  uint64_t mask = 0;
  bool operator==(const SignalAction&) const = default;
};

/// setitimer values, microseconds; which: 0 REAL, 1 VIRTUAL, 2 PROF.
struct IntervalTimer {
  int which = 0;
  uint64_t interval_us = 0;
  uint64_t value_us = 0;  ///< time left at capture, 0: disarmed
  bool operator==(const IntervalTimer&) const = default;
};

/// timer_create timers: /proc/PID/timers and timer_gettime.
struct PosixTimer {
  int id = 0;
  int clock = 0;
  int notify = 0;         ///< sigev_notify: SIGEV_SIGNAL 0, SIGEV_NONE 1, SIGEV_THREAD 2, SIGEV_THREAD_ID 4
  int signo = 0;
  int tid = 0;            ///< for SIGEV_THREAD_ID
  uint64_t sigval = 0;
  uint64_t interval_ns = 0;
  uint64_t value_ns = 0;  ///< time left, 0: disarmed
  bool operator==(const PosixTimer&) const = default;
};

/// A system call that was interrupted with -ERESTART_RESTARTBLOCK (516) cannot be continued in another thread: the time
/// left lives in the old kernel task. What `rebuild` does instead.
enum class RestartKind {
  kNone,       ///< the registers say all
  kRepeat,     ///< run the call again from the start, with its own arguments
  kSleepLeft,  ///< nanosleep / clock_nanosleep (relative): sleep `sleep_left_ns`, then return 0; remainder to its own rem
};

struct Thread {
  int tid = 0;
  std::string comm;
  Registers regs;
  uint64_t xstate_offset = 0;      ///< NT_X86_XSTATE area in the image's file "xstate"
  uint64_t xstate_size = 0;
  uint64_t signal_mask = 0;
  std::vector<QueuedSignal> pending;  ///< private to the thread
  uint64_t alt_stack_base = 0, alt_stack_size = 0;
  int alt_stack_flags = 0;            ///< SS_DISABLE 2, SS_AUTODISARM 1<<31
  uint64_t robust_list = 0, robust_list_size = 0;
  uint64_t rseq_address = 0;          ///< 0: not registered
  uint32_t rseq_size = 0, rseq_signature = 0;
  uint64_t clear_child_tid = 0;
  RestartKind restart = RestartKind::kNone;
  uint64_t sleep_left_ns = 0;
  // Scheduling (sched_getattr), affinity, and the rest a thread has of its own.
  uint32_t sched_policy = 0;
  uint64_t sched_flags = 0;
  int32_t nice = 0;
  uint32_t sched_priority = 0;
  uint64_t sched_runtime = 0, sched_deadline = 0, sched_period = 0;
  std::vector<uint8_t> affinity;      ///< bit mask as sched_getaffinity gives it
  int ioprio = 0;
  uint64_t timer_slack_ns = 0;        ///< 0: not known
  // Credentials are a thread's own on Linux.
  std::array<uint32_t, 4> uid{}, gid{};  ///< real, effective, saved, filesystem
  std::vector<uint32_t> groups;
  uint64_t cap_inheritable = 0, cap_permitted = 0, cap_effective = 0, cap_bounding = 0, cap_ambient = 0;
  uint32_t securebits = 0;
  bool no_new_privs = false;
  std::vector<Cgroup> cgroups;        ///< where they differ from the leader's; empty: the same
  MemoryPolicy policy;
  bool operator==(const Thread&) const = default;
};

enum class MappingKind {
  kAnonymous,        ///< private, no file: heap, stack, malloc arenas
  kPrivateFile,      ///< MAP_PRIVATE of a file: the image has only the pages that differ from the file
  kSharedFile,       ///< MAP_SHARED of a regular file: the file holds the bytes
  kSharedMemory,     ///< MAP_SHARED of a SharedMemory object: the image has every page of the object with content
  kVdso,             ///< [vdso], [vvar], [vvar_vclock]: the new kernel's own, moved to the old place
};

/// One VMA. Two neighbours that the kernel would merge may appear as one or as two.
struct MemoryMap {
  uint64_t start = 0, end = 0;
  int prot = 0;              ///< PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4
  MappingKind kind = MappingKind::kAnonymous;
  std::string name;          ///< as /proc/PID/maps shows it: path, [heap], [stack], [anon:..]
  int file = -1;             ///< index into TreeImage::files, -1: none
  int shared_memory = -1;    ///< kSharedMemory, and kPrivateFile of a memfd: index into TreeImage::shared_memory
  uint64_t file_offset = 0;  ///< in the file or the shared memory
  std::vector<std::string> flags;  ///< VmFlags of smaps as they are: "gd" grows down, "dc", "wf", "dd", "hg", "nh", "lo", "nr", "mg", ...
  std::vector<std::pair<uint64_t, uint64_t>> guards;  ///< [start, end) made by MADV_GUARD_INSTALL
  bool operator==(const MemoryMap&) const = default;
};
inline bool is_private(const MemoryMap& map) { return map.kind == MappingKind::kAnonymous || map.kind == MappingKind::kPrivateFile; }

/// A file that the process maps, executes, or has open, with what tells whether it is still the same.
struct FileIdentity {
  std::string path;
  uint64_t device = 0, inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  uint32_t mode = 0;
  std::string build_id;      ///< ELF build id in hex when it has one (mapped executables)
  /// Unlinked while in use (`path` is where it was): restore makes it again and unlinks it. A regular file's bytes are
  /// in memory space `space`.
  bool deleted = false;
  int space = -1;
  uint32_t uid = 0, gid = 0;
  std::string other_name;    ///< deleted under `path` only: a name that is left, which has the bytes
  bool operator==(const FileIdentity&) const = default;
};

/// Memory that processes share and no file name leads to. Its pages are in the image's memory space `space`, by offset.
struct SharedMemory {
  enum class Kind {
    kAnonymous,  ///< mmap(MAP_SHARED | MAP_ANONYMOUS), /dev/zero mapped shared
    kMemfd,      ///< memfd_create
    kSystemV,    ///< shmget: `id` of one of TreeImage::ipc.segments, and its `key`; `inode` is the id, too
  };
  Kind kind = Kind::kAnonymous;
  uint64_t inode = 0;      ///< what names it while it lives
  std::string name;        ///< kMemfd: as given to memfd_create
  uint64_t size = 0;       ///< bytes
  uint32_t seals = 0;      ///< kMemfd: F_SEAL_*
  uint32_t mode = 0, uid = 0, gid = 0;
  int key = 0, id = -1;    ///< kSystemV
  int space = -1;
  bool operator==(const SharedMemory&) const = default;
};

enum class DescriptorKind {
  kFile,      ///< regular file, folder: `file`, flags, offset
  kDevice,    ///< /dev/null, zero, full, random, urandom: opened again by path
  kPipe,      ///< both ends inside the process: `pipe`
  kEventfd,
  kEpoll,
  kTimerfd,
  kSignalfd,
  kExternal,  ///< terminal or pipe of the surroundings, taken from the restoring shell's descriptor of the same number (--shell-job)
  kMemfd,     ///< `shared_memory`
  kFifo,      ///< named pipe: `file`, `pipe`
  kProcFile,  ///< a file of /proc/PID of a process in the tree: `external` is its path
  kSocket,     ///< `object`: index into TreeImage::sockets
  kTerminal,   ///< `object`: index into TreeImage::terminal_ends
  kInotify,    ///< `object`: index into TreeImage::inotifies
  kFanotify,   ///< `object`: index into TreeImage::fanotifies
  kPidfd,      ///< `object`: index into TreeImage::process_handles
  kPosixQueue, ///< `object`: index into TreeImage::posix_queues
};

/// A number in a descriptor table.
struct FdSlot {
  int process = 0;  ///< index into TreeImage::processes: the table is that process's (ProcessImage::descriptors_of is -1)
  int fd = 0;
  bool close_on_exec = false;
  bool operator==(const FdSlot&) const = default;
};

struct EpollEntry {
  int process = 0;    ///< index into TreeImage::processes: in whose table `target_fd` is a number
  int target_fd = 0;
  int descriptor = -1;  ///< index into TreeImage::descriptors, where the number no longer leads there
  uint32_t events = 0;
  uint64_t data = 0;
  bool operator==(const EpollEntry&) const = default;
};

/// One open file description; `fds` are the descriptors that share it (dup, fork, SCM_RIGHTS). None: it is in flight, in
/// a socket's queue.
struct Descriptor {
  DescriptorKind kind = DescriptorKind::kFile;
  std::vector<FdSlot> fds;
  int flags = 0;                          ///< O_* as fdinfo gives them
  uint64_t offset = 0;
  int file = -1;                          ///< kFile, kDevice, kFifo: index into TreeImage::files
  int shared_memory = -1;                 ///< kMemfd: index into TreeImage::shared_memory
  std::string external;                   ///< kExternal: "tty /dev/pts/3", "pipe:[123]"; kProcFile: "/proc/12/status"
  bool written_by_process = false;        ///< open for writing: the file may have grown, the recorded offset counts
  int object = -1;                        ///< of the kinds that say so
  int pipe = -1;                          ///< kPipe, kFifo: index into TreeImage::pipes
  uint64_t eventfd_count = 0;
  bool eventfd_semaphore = false;
  std::vector<EpollEntry> epoll;
  int timerfd_clock = 0;
  int timerfd_settime_flags = 0;
  uint64_t timerfd_ticks = 0, timerfd_interval_ns = 0;
  uint64_t timerfd_value_ns = 0;  ///< time left; of a single expiry at an absolute time (TFD_TIMER_ABSTIME 1): that time
  uint64_t signalfd_mask = 0;
  int owner_type = 0, owner_pid = 0, owner_signal = 0;  ///< F_SETOWN_EX, F_SETSIG; 0: none
  std::vector<FileLock> locks;    ///< kFlock, kOfd: those that belong to the description
  bool operator==(const Descriptor&) const = default;
};

struct Pipe {
  uint64_t capacity = 65536;       ///< F_GETPIPE_SZ
  uint64_t content_offset = 0, content_size = 0;
  bool operator==(const Pipe&) const = default;
};

struct ResourceLimit {
  int resource = 0;                ///< RLIMIT_*
  uint64_t soft = 0, hard = 0;     ///< ~0: unlimited
  bool operator==(const ResourceLimit&) const = default;
};

/// What a parent could still learn of a child by wait(2) with WUNTRACED or WCONTINUED.
enum class News { kNone, kStopped, kContinued };

/// PR_SET_MM_MAP's bounds.
struct MemoryBounds {
  uint64_t start_code = 0, end_code = 0, start_data = 0, end_data = 0, start_brk = 0, brk = 0, start_stack = 0;
  uint64_t arg_start = 0, arg_end = 0, env_start = 0, env_end = 0;
  bool operator==(const MemoryBounds&) const = default;
};

/// A POSIX lock, which belongs to the process.
struct ProcessLock {
  int fd = 0;  ///< a descriptor of the file
  FileLock lock;
  bool operator==(const ProcessLock&) const = default;
};

/// One process with all its threads; threads[0] is the leader. Of a zombie only numbers, name and status are told.
struct ProcessImage {
  int pid = 0, parent_pid = 0, group = 0, session = 0;
  int space = -1;                  ///< of its pages; -1: none of its own (a zombie, or `memory_of`)
  bool zombie = false;             ///< has ended, and its parent has not waited for it
  int exit_status = 0;             ///< zombie: as wait(2) gives it
  int exit_signal = 17;            ///< what its parent gets at its end: SIGCHLD, or what clone was told
  /// What it shares with a process further up in the list (clone's CLONE_VM, _FILES, _FS, _SIGHAND): that one's index.
  /// -1: its own.
  int memory_of = -1, descriptors_of = -1, folders_of = -1, handlers_of = -1;
  bool outside_session = false, outside_group = false;  ///< their leaders are alive, and not of the tree
  int terminal = 0;                ///< tty_nr of /proc/PID/stat, 0: none
  bool stopped = false;            ///< in group-stop at capture
  int stop_signal = 19;            ///< by which it was stopped: SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU
  News news = News::kNone;         ///< of this process for its parent, if that is of the tree
  std::vector<Thread> threads;
  std::vector<QueuedSignal> pending;  ///< shared by the whole process
  std::vector<SignalAction> actions;  ///< those that differ from SIG_DFL with no flags
  std::vector<IntervalTimer> interval_timers;
  std::vector<PosixTimer> posix_timers;
  std::vector<MemoryMap> maps;     ///< by address
  MemoryBounds bounds;
  std::vector<uint64_t> auxv;      ///< pairs, AT_NULL included
  uint64_t vdso_start = 0;         ///< address of the ELF header, 0: none
  std::string vdso_xxh128;         ///< of the [vdso] bytes: another one means another kernel
  int exe = -1, cwd = -1, root = -1;  ///< indices into TreeImage::files
  std::vector<ResourceLimit> limits;
  std::vector<ProcessLock> locks;
  Seccomp seccomp;
  std::vector<Cgroup> cgroups;
  std::vector<MappingPolicy> policies;  ///< of mappings that have one of their own
  int umask = 022;
  uint32_t membarrier = 0;         ///< registrations of its memory, as MEMBARRIER_CMD_GET_REGISTRATIONS gives them
  int64_t login_uid = -1;          ///< /proc/PID/loginuid (4294967295: unset); -1: not known
  uint64_t personality = 0;
  int dumpable = 1;
  int parent_death_signal = 0;
  bool child_subreaper = false;
  bool thp_disabled = false;
  int gpu_thread = 0;              ///< the thread in it that works for the driver when its GPU state is put back; 0: it has none
  int oom_score_adj = 0;
  int coredump_filter = 0x33;
  std::vector<std::string> arguments;  ///< argv, for people
  bool operator==(const ProcessImage&) const = default;
};

/// A process and all its descendants, with everything that they have in common. Each process comes after its parent;
/// the first is the root.
struct TreeImage {
  std::vector<ProcessImage> processes;
  std::vector<FileIdentity> files;
  std::vector<Descriptor> descriptors;
  std::vector<Pipe> pipes;
  std::vector<SharedMemory> shared_memory;
  std::vector<Socket> sockets;
  std::string packet_filter;  ///< that holds off the peers of its TCP connections until it is restored; empty: none
  std::vector<Terminal> terminals;
  std::vector<TerminalEnd> terminal_ends;
  std::vector<Inotify> inotifies;
  std::vector<Fanotify> fanotifies;
  std::vector<ProcessHandle> process_handles;
  std::vector<PosixQueue> posix_queues;
  SystemVIpc ipc;
  std::vector<DeviceMemory> devices;
  GpuState gpu;
  const ProcessImage& root() const { return processes.front(); }
  bool operator==(const TreeImage&) const = default;
};

/// Pages are kept by address in a memory space: the address space of a process, a shared memory, the content of a deleted
/// file. The number of the space is in the upper 16 bits of a block's address, which no address of x86-64 uses.
constexpr unsigned kSpaceShift = 48;
constexpr int kMaxSpaces = 1 << 16;
constexpr uint64_t space_base(int space) { return static_cast<uint64_t>(space) << kSpaceShift; }

/// The machine an image was taken on; restore compares.
struct HostFacts {
  std::string hostname, kernel, machine;  ///< uname
  std::string boot_id;
  std::string cpu_model;
  std::vector<std::string> cpu_flags;     ///< of /proc/cpuinfo
  uint64_t xcr0 = 0;                      ///< enabled xstate features
  uint64_t page_size = 4096;
  bool operator==(const HostFacts&) const = default;
};

/// Memory that came to an image and took no room in its pages files: bytes, by the reason.
struct Savings {
  uint64_t zero = 0;              ///< pages that are zero
  uint64_t same_space = 0;        ///< stored already, for the same process, shared memory or file
  uint64_t other_space = 0;       ///< stored already, for another one of the tree
  uint64_t parent_unwritten = 0;  ///< known to be as in the parent: not even read
  uint64_t parent_equal = 0;      ///< read, and as in the parent
  uint64_t chain_elsewhere = 0;   ///< in an image of the chain, at another address or of another process
  uint64_t compression = 0;
  bool operator==(const Savings&) const = default;
};

/// One round of copying ahead, while the process went on.
struct CaptureRound {
  uint64_t pages = 0, us = 0;
  bool operator==(const CaptureRound&) const = default;
};

/// How the image came about, every phase in microseconds: printed by the verb, kept for `inspect`.
struct CaptureStats {
  uint64_t frozen_us = 0;      ///< of the one stop that the image is of
  uint64_t stops_us = 0;       ///< all the short stops beside it: to begin tracking, between rounds, to end a snapshot
  std::vector<CaptureRound> rounds;
  uint64_t target_faults = 0;  ///< page faults of the processes while they ran and were captured
  uint64_t target_ran_us = 0, target_waited_us = 0;  ///< the same time: on a processor, and waiting for one
  uint64_t pages_scanned = 0, pages_copied = 0, pages_zero = 0, pages_unchanged = 0;
  uint64_t bytes_memory = 0;   ///< read from the target
  uint64_t bytes_written = 0;  ///< to the image
  uint64_t gpu_held_us = 0;    ///< GPU work of the processes waited for so long; 0: no GPU, or it ended with them
  /// Device memory that ckpt itself copied (of programs under `ckpt run`): all there is; while kernels ran,
  /// while they waited, and from copy-on-write behind that.
  uint64_t gpu_bytes = 0, gpu_bytes_ahead = 0, gpu_bytes_last = 0, gpu_bytes_behind = 0;
  Savings saved;               ///< filled in by the writer
  std::vector<std::pair<std::string, uint64_t>> phases_us;  ///< in order: freeze, describe, snapshot, copy, write, ...
  bool operator==(const CaptureStats&) const = default;
};

}  // namespace ckpt::store
