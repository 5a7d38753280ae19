// What an image of a process tree says, beside its memory: the description that `capture` fills from live processes,
// that the manifest holds as JSON a person can read, and that `restore` makes processes from. Numbers are the kernel's
// own (x86-64 Linux); addresses are the target's, never dereferenced here. man/ckpt-image.5 documents the JSON form,
// whose members have the names of the fields below.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/state/aio/record.h"
#include "lib/state/attributes/record.h"
#include "lib/state/cgroups/record.h"
#include "lib/state/descriptors/record.h"
#include "lib/state/epoll/record.h"
#include "lib/state/eventfd/record.h"
#include "lib/state/files/record.h"
#include "lib/state/gpu/record.h"
#include "lib/state/io_uring/record.h"
#include "lib/state/labels/record.h"
#include "lib/state/locks/record.h"
#include "lib/state/mappings/record.h"
#include "lib/state/memory_policies/record.h"
#include "lib/state/namespaces/record.h"
#include "lib/state/pidfds/record.h"
#include "lib/state/pipes/record.h"
#include "lib/state/posix_queues/record.h"
#include "lib/state/seccomp/record.h"
#include "lib/state/shared_memory/record.h"
#include "lib/state/signalfd/record.h"
#include "lib/state/signals/record.h"
#include "lib/state/sockets/record.h"
#include "lib/state/system_v_ipc/record.h"
#include "lib/state/terminals/record.h"
#include "lib/state/threads/record.h"
#include "lib/state/timerfd/record.h"
#include "lib/state/timers/record.h"
#include "lib/state/tree/record.h"
#include "lib/state/watches/record.h"

namespace ckpt::store {

/// One process with all its threads; threads[0] is the leader. Of a zombie only numbers, name and status are told.
struct ProcessImage {
  int pid = 0, parent_pid = 0, group = 0, session = 0;
  int space = -1;                  ///< of its pages; -1: none of its own (a zombie, or `memory_of`)
  bool zombie = false;             ///< has ended, and its parent has not waited for it
  int exit_status = 0;             ///< zombie: as wait(2) gives it
  int exit_signal = 17;            ///< what its parent gets at its end: SIGCHLD, or what clone was told
  /// What it shares with a process further up in the list (clone's CLONE_VM, _FILES, _FS, _SIGHAND): that one's index.
  /// -1: its own.
  int memory_of = -1, descriptors_of = -1, fs_of = -1, sighand_of = -1;
  /// As `group` and `session` in each further pid namespace that it is in, the outermost first; 0: they have no number
  /// there.
  std::vector<int> inner_groups, inner_sessions;
  int pid_for_children = -1;  ///< index of the further pid namespace that its next child is born in; -1: its own
  bool outside_session = false, outside_group = false;  ///< their leaders are alive, and not of the tree
  int terminal = 0;                ///< tty_nr of /proc/PID/stat, 0: none
  bool stopped = false;            ///< in group-stop at capture
  int stop_signal = 19;            ///< by which it was stopped: SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU
  WaitStatus wait_status = WaitStatus::kNone;  ///< of this process for its parent, if that is of the tree
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
  uint32_t future_locks = 0;       ///< MCL_FUTURE, MCL_ONFAULT: what of its memory to come is locked (mlockall(2))
  int64_t login_uid = -1;          ///< /proc/PID/loginuid (4294967295: unset); -1: not known
  uint64_t personality = 0;
  int dumpable = 1;
  int parent_death_signal = 0;
  bool child_subreaper = false;
  bool thp_disabled = false;
  bool thp_except_advised = false;  ///< ... but for what asked for huge pages (madvise)
  bool memory_merge = false;        ///< PR_SET_MEMORY_MERGE: what it maps is looked through for equal pages
  bool amx_tiles = false;           ///< has leave to use AMX tiles (ARCH_REQ_XCOMP_PERM), whether it does now or not
  bool restores_timer_ids = false;  ///< PR_TIMER_CREATE_RESTORE_IDS: it chooses the numbers of its POSIX timers
  int futex_slots = -1;             ///< PR_FUTEX_HASH_SET_SLOTS; 0: no table of its own; -1: the kernel's choice
  int autogroup_nice = 0;           ///< of its session, /proc/PID/autogroup
  int gpu_thread = 0;  ///< the thread in it that works for the driver when its GPU state is put back; 0: it has none
  int oom_score_adj = 0;
  int coredump_filter = 0x33;
  std::vector<int> namespaces;  ///< indices into Namespaces::further, one of a kind at most
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
  std::vector<IoUring> io_urings;
  std::vector<AioContext> aio_contexts;
  SystemVIpc ipc;
  std::vector<DeviceMemory> devices;
  GpuState gpu;
  Namespaces namespaces;
  bool labels_recorded = false;  ///< whether Thread::labels tells, also where it is empty
  const ProcessImage& root() const { return processes.front(); }
  bool operator==(const TreeImage&) const = default;
};

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

/// One iteration of pre-copy, while the process went on.
struct CaptureIteration {
  uint64_t pages = 0, us = 0;
  bool operator==(const CaptureIteration&) const = default;
};

/// How the image came about, every phase in microseconds: printed by the verb, kept for `inspect`.
struct CaptureStats {
  uint64_t frozen_us = 0;      ///< of the one stop that the image is of
  uint64_t stops_us = 0;       ///< all the short stops beside it: to track, between iterations, to end a snapshot
  std::vector<CaptureIteration> iterations;
  uint64_t target_faults = 0;  ///< page faults of the processes while they ran and were captured
  uint64_t target_ran_us = 0, target_waited_us = 0;  ///< the same time: on a processor, and waiting for one
  uint64_t pages_scanned = 0, pages_copied = 0, pages_zero = 0, pages_unchanged = 0;
  uint64_t bytes_memory = 0;   ///< read from the target
  uint64_t bytes_written = 0;  ///< to the image
  uint64_t gpu_held_us = 0;    ///< GPU work of the processes waited for so long; 0: no GPU, or it ended with them
  /// Device memory that ckpt itself copied (of programs under `ckpt run`): all there is; while kernels ran,
  /// while they waited, and by copy-on-write after that (deferred).
  uint64_t gpu_bytes = 0, gpu_bytes_precopied = 0, gpu_bytes_last = 0, gpu_bytes_deferred = 0;
  Savings saved;               ///< filled in by the writer
  std::vector<std::pair<std::string, uint64_t>> phases_us;  ///< in order: freeze, describe, snapshot, copy, write, ...
  bool operator==(const CaptureStats&) const = default;
};

}  // namespace ckpt::store
