// The members of the manifest, each named once: one description that an archive runs forwards (to JSON) or backwards.
//
// An archive A has `Of<T>` (const T& when it writes) and number, hex, hexes, flag, text, texts, octets, numbers, choice,
// object and list. A member that came after format version 3 was first used goes through optional(), as in
// `a.optional().number("x", t.x)`: where it is missing the record keeps its default, which must mean what the state was
// before. Where an older ckpt that passed the member over would restore something wrong, features.h gets a row, too.
// What is an address or a mask is written as "0x..": other programs read JSON numbers as doubles.
#pragma once

#include <array>
#include <limits>

#include "lib/store/device_fields.h"
#include "lib/store/image.h"
#include "lib/store/ipc_fields.h"
#include "lib/store/lock_fields.h"
#include "lib/store/placement_fields.h"
#include "lib/store/seccomp_fields.h"
#include "lib/store/socket_fields.h"
#include "lib/store/terminal_fields.h"
#include "lib/store/watch_fields.h"

namespace ckpt::store {

inline constexpr std::array<const char*, 3> kRestartNames = {"none", "repeat", "sleep-left"};
inline constexpr std::array<const char*, 5> kMappingNames = {"anonymous", "private-file", "shared-file", "shared-memory",
                                                             "vdso"};
inline constexpr std::array<const char*, 17> kDescriptorNames = {
    "file",  "device", "pipe",      "eventfd", "epoll",    "timerfd", "signalfd", "external",   "memfd",
    "fifo",  "proc-file", "socket", "terminal", "inotify", "fanotify", "pidfd",   "posix-queue"};
inline constexpr std::array<const char*, 3> kNewsNames = {"none", "stopped", "continued"};
inline constexpr std::array<const char*, 3> kSharedMemoryNames = {"anonymous", "memfd", "system-v"};
inline constexpr std::array<const char*, 8> kProtNames = {"---", "r--", "-w-", "rw-", "--x", "r-x", "-wx", "rwx"};

template <class A>
void describe(A& a, typename A::template Of<Registers> r) {
  for (size_t i = 0; i < r.value.size(); ++i) a.hex(kRegisterNames[i], r.value[i]);
}

template <class A>
void describe(A& a, typename A::template Of<QueuedSignal> s) {
  a.number("signo", s.signo, 1, 64);
  a.octets("siginfo", s.siginfo, 128, 128);
}

template <class A>
void describe(A& a, typename A::template Of<SignalAction> s) {
  a.number("signo", s.signo, 1, 64);
  a.hex("handler", s.handler);
  a.hex("flags", s.flags);
  a.hex("restorer", s.restorer);
  a.hex("mask", s.mask);
}

template <class A>
void describe(A& a, typename A::template Of<IntervalTimer> t) {
  a.number("which", t.which, 0, 2);
  a.number("interval_us", t.interval_us);
  a.number("value_us", t.value_us);
}

template <class A>
void describe(A& a, typename A::template Of<PosixTimer> t) {
  a.number("id", t.id, 0);
  a.number("clock", t.clock);
  a.number("notify", t.notify, 0);
  a.number("signo", t.signo, 0, 64);
  a.number("tid", t.tid, 0);
  a.hex("sigval", t.sigval);
  a.number("interval_ns", t.interval_ns);
  a.number("value_ns", t.value_ns);
}

template <class A>
void describe(A& a, typename A::template Of<Thread> t) {
  a.number("tid", t.tid, 1);
  a.text("comm", t.comm);
  a.object("regs", t.regs);
  a.number("xstate_offset", t.xstate_offset);
  a.number("xstate_size", t.xstate_size);
  a.hex("signal_mask", t.signal_mask);
  a.list("pending", t.pending);
  a.hex("alt_stack_base", t.alt_stack_base);
  a.number("alt_stack_size", t.alt_stack_size);
  a.number("alt_stack_flags", t.alt_stack_flags);
  a.hex("robust_list", t.robust_list);
  a.number("robust_list_size", t.robust_list_size);
  a.hex("rseq_address", t.rseq_address);
  a.number("rseq_size", t.rseq_size);
  a.number("rseq_signature", t.rseq_signature);
  a.hex("clear_child_tid", t.clear_child_tid);
  a.choice("restart", t.restart, kRestartNames);
  a.number("sleep_left_ns", t.sleep_left_ns);
  a.number("sched_policy", t.sched_policy);
  a.hex("sched_flags", t.sched_flags);
  a.number("nice", t.nice, -20, 19);
  a.number("sched_priority", t.sched_priority);
  a.number("sched_runtime", t.sched_runtime);
  a.number("sched_deadline", t.sched_deadline);
  a.number("sched_period", t.sched_period);
  a.octets("affinity", t.affinity, 0, 64 * 1024);
  a.number("ioprio", t.ioprio);
  a.number("timer_slack_ns", t.timer_slack_ns);
  a.numbers("uid", t.uid);
  a.numbers("gid", t.gid);
  a.numbers("groups", t.groups);
  a.hex("cap_inheritable", t.cap_inheritable);
  a.hex("cap_permitted", t.cap_permitted);
  a.hex("cap_effective", t.cap_effective);
  a.hex("cap_bounding", t.cap_bounding);
  a.hex("cap_ambient", t.cap_ambient);
  a.number("securebits", t.securebits);
  a.flag("no_new_privs", t.no_new_privs);
  a.list("cgroups", t.cgroups);
  a.object("policy", t.policy);
}

template <class A>
void describe(A& a, typename A::template Of<MemoryMap> m) {
  a.hex("start", m.start);
  a.hex("end", m.end);
  a.choice("prot", m.prot, kProtNames);
  a.choice("kind", m.kind, kMappingNames);
  a.text("name", m.name);
  a.number("file", m.file, -1);
  a.number("shared_memory", m.shared_memory, -1);
  a.hex("file_offset", m.file_offset);
  a.texts("flags", m.flags);
  a.list("guards", m.guards, [](auto& sub, auto& range) {
    sub.hex("start", range.first);
    sub.hex("end", range.second);
  });
}

template <class A>
void describe(A& a, typename A::template Of<FileIdentity> f) {
  a.text("path", f.path);
  a.number("device", f.device);
  a.number("inode", f.inode);
  a.number("size", f.size);
  a.number("mtime_ns", f.mtime_ns);
  a.number("mode", f.mode);
  a.text("build_id", f.build_id);
  a.flag("deleted", f.deleted);
  a.number("space", f.space, -1, kMaxSpaces - 1);
  a.number("uid", f.uid);
  a.number("gid", f.gid);
  a.text("other_name", f.other_name);
}

template <class A>
void describe(A& a, typename A::template Of<SharedMemory> m) {
  a.choice("kind", m.kind, kSharedMemoryNames);
  a.number("inode", m.inode);
  a.text("name", m.name);
  a.number("size", m.size);
  a.number("seals", m.seals);
  a.number("mode", m.mode);
  a.number("uid", m.uid);
  a.number("gid", m.gid);
  a.number("key", m.key);
  a.number("id", m.id);
  a.number("space", m.space, -1, kMaxSpaces - 1);
}

template <class A>
void describe(A& a, typename A::template Of<EpollEntry> e) {
  a.number("process", e.process, 0);
  a.number("target_fd", e.target_fd, 0);
  a.number("descriptor", e.descriptor, -1);
  a.number("events", e.events);
  a.hex("data", e.data);
}

template <class A>
void describe(A& a, typename A::template Of<Descriptor> d) {
  a.choice("kind", d.kind, kDescriptorNames);
  a.list("fds", d.fds, [](auto& sub, auto& fd) {
    sub.number("process", fd.process, 0);
    sub.number("fd", fd.fd, 0);
    sub.flag("cloexec", fd.close_on_exec);
  });
  a.number("flags", d.flags);
  a.number("offset", d.offset);
  a.number("file", d.file, -1);
  a.number("shared_memory", d.shared_memory, -1);
  a.text("external", d.external);
  a.flag("written_by_process", d.written_by_process);
  a.number("object", d.object, -1);
  a.number("pipe", d.pipe, -1);
  a.number("eventfd_count", d.eventfd_count);
  a.flag("eventfd_semaphore", d.eventfd_semaphore);
  a.list("epoll", d.epoll);
  a.number("timerfd_clock", d.timerfd_clock);
  a.number("timerfd_settime_flags", d.timerfd_settime_flags);
  a.number("timerfd_ticks", d.timerfd_ticks);
  a.number("timerfd_interval_ns", d.timerfd_interval_ns);
  a.number("timerfd_value_ns", d.timerfd_value_ns);
  a.hex("signalfd_mask", d.signalfd_mask);
  a.number("owner_type", d.owner_type);
  a.number("owner_pid", d.owner_pid);
  a.number("owner_signal", d.owner_signal);
  a.list("locks", d.locks);
}

template <class A>
void describe(A& a, typename A::template Of<Pipe> p) {
  a.number("capacity", p.capacity);
  a.number("content_offset", p.content_offset);
  a.number("content_size", p.content_size);
}

template <class A>
void describe(A& a, typename A::template Of<ResourceLimit> l) {
  a.number("resource", l.resource, 0, 64);
  a.number("soft", l.soft);
  a.number("hard", l.hard);
}

template <class A>
void describe(A& a, typename A::template Of<MemoryBounds> b) {
  a.hex("start_code", b.start_code);
  a.hex("end_code", b.end_code);
  a.hex("start_data", b.start_data);
  a.hex("end_data", b.end_data);
  a.hex("start_brk", b.start_brk);
  a.hex("brk", b.brk);
  a.hex("start_stack", b.start_stack);
  a.hex("arg_start", b.arg_start);
  a.hex("arg_end", b.arg_end);
  a.hex("env_start", b.env_start);
  a.hex("env_end", b.env_end);
}

template <class A>
void describe(A& a, typename A::template Of<ProcessLock> l) {
  a.number("fd", l.fd, 0);
  a.object("lock", l.lock);
}

template <class A>
void describe(A& a, typename A::template Of<ProcessImage> p) {
  a.number("pid", p.pid, 0);
  a.number("parent_pid", p.parent_pid, 0);
  a.number("group", p.group, 0);
  a.number("session", p.session, 0);
  a.number("space", p.space, -1, kMaxSpaces - 1);
  a.flag("zombie", p.zombie);
  a.number("exit_status", p.exit_status);
  a.number("exit_signal", p.exit_signal, 0, 64);
  a.number("memory_of", p.memory_of, -1);
  a.number("descriptors_of", p.descriptors_of, -1);
  a.number("folders_of", p.folders_of, -1);
  a.number("handlers_of", p.handlers_of, -1);
  a.flag("outside_session", p.outside_session);
  a.flag("outside_group", p.outside_group);
  a.number("terminal", p.terminal);
  a.flag("stopped", p.stopped);
  a.optional().number("stop_signal", p.stop_signal, 1, 64);
  a.choice("news", p.news, kNewsNames);
  a.texts("arguments", p.arguments);
  a.list("threads", p.threads);
  a.list("pending", p.pending);
  a.list("actions", p.actions);
  a.list("interval_timers", p.interval_timers);
  a.list("posix_timers", p.posix_timers);
  a.list("maps", p.maps);
  a.object("bounds", p.bounds);
  a.hexes("auxv", p.auxv);
  a.hex("vdso_start", p.vdso_start);
  a.text("vdso_xxh128", p.vdso_xxh128);
  a.number("exe", p.exe, -1);
  a.number("cwd", p.cwd, -1);
  a.number("root", p.root, -1);
  a.list("limits", p.limits);
  a.list("locks", p.locks);
  a.object("seccomp", p.seccomp);
  a.list("cgroups", p.cgroups);
  a.list("policies", p.policies);
  a.number("umask", p.umask, 0, 0777);
  a.optional().number("membarrier", p.membarrier);
  a.optional().number("login_uid", p.login_uid, -1);
  a.hex("personality", p.personality);
  a.number("dumpable", p.dumpable);
  a.number("parent_death_signal", p.parent_death_signal, 0, 64);
  a.flag("child_subreaper", p.child_subreaper);
  a.flag("thp_disabled", p.thp_disabled);
  a.number("oom_score_adj", p.oom_score_adj, -1000, 1000);
  a.number("coredump_filter", p.coredump_filter);
  a.number("gpu_thread", p.gpu_thread, 0);
}

template <class A>
void describe(A& a, typename A::template Of<GpuUse> g) {
  a.text("uuid", g.uuid);
  a.text("name", g.name);
  a.number("bytes", g.bytes);
}

template <class A>
void describe(A& a, typename A::template Of<GpuState> g) {
  a.text("driver", g.driver);
  a.list("used", g.used);
}

template <class A>
void describe(A& a, typename A::template Of<TreeImage> t) {
  a.list("processes", t.processes);
  a.list("files", t.files);
  a.list("descriptors", t.descriptors);
  a.list("pipes", t.pipes);
  a.list("shared_memory", t.shared_memory);
  a.list("sockets", t.sockets);
  a.text("packet_filter", t.packet_filter);
  a.list("terminals", t.terminals);
  a.list("terminal_ends", t.terminal_ends);
  a.list("inotifies", t.inotifies);
  a.list("fanotifies", t.fanotifies);
  a.list("process_handles", t.process_handles);
  a.list("posix_queues", t.posix_queues);
  a.object("ipc", t.ipc);
  a.list("devices", t.devices);
  a.object("gpu", t.gpu);
}

template <class A>
void describe(A& a, typename A::template Of<HostFacts> h) {
  a.text("hostname", h.hostname);
  a.text("kernel", h.kernel);
  a.text("machine", h.machine);
  a.text("boot_id", h.boot_id);
  a.text("cpu_model", h.cpu_model);
  a.texts("cpu_flags", h.cpu_flags);
  a.hex("xcr0", h.xcr0);
  a.number("page_size", h.page_size);
}

template <class A>
void describe(A& a, typename A::template Of<Savings> s) {
  a.number("zero", s.zero);
  a.number("same_space", s.same_space);
  a.number("other_space", s.other_space);
  a.number("parent_unwritten", s.parent_unwritten);
  a.number("parent_equal", s.parent_equal);
  a.number("chain_elsewhere", s.chain_elsewhere);
  a.number("compression", s.compression);
}

template <class A>
void describe(A& a, typename A::template Of<CaptureStats> s) {
  a.number("frozen_us", s.frozen_us);
  a.number("stops_us", s.stops_us);
  a.list("rounds", s.rounds, [](auto& sub, auto& round) {
    sub.number("pages", round.pages);
    sub.number("us", round.us);
  });
  a.number("target_faults", s.target_faults);
  a.number("target_ran_us", s.target_ran_us);
  a.number("target_waited_us", s.target_waited_us);
  a.number("pages_scanned", s.pages_scanned);
  a.number("pages_copied", s.pages_copied);
  a.number("pages_zero", s.pages_zero);
  a.number("pages_unchanged", s.pages_unchanged);
  a.number("gpu_held_us", s.gpu_held_us);
  a.number("gpu_bytes", s.gpu_bytes);
  a.number("gpu_bytes_ahead", s.gpu_bytes_ahead);
  a.number("gpu_bytes_last", s.gpu_bytes_last);
  a.number("gpu_bytes_behind", s.gpu_bytes_behind);
  a.number("bytes_memory", s.bytes_memory);
  a.number("bytes_written", s.bytes_written);
  a.object("saved", s.saved);
  a.list("phases_us", s.phases_us, [](auto& sub, auto& phase) {
    sub.text("phase", phase.first);
    sub.number("us", phase.second);
  });
}

template <class A>
void describe(A& a, typename A::template Of<StoredFile> f) {
  a.text("name", f.name);
  a.number("size", f.size);
  a.text("xxh128", f.xxh128);
  a.optional().text("sha256", f.sha256);
}

template <class A>
void describe(A& a, typename A::template Of<Manifest> m) {
  a.text("id", m.id);
  a.text("created", m.created);
  a.text("kind", m.kind);
  a.text("parent_path", m.parent_path);
  a.text("parent_id", m.parent_id);
  a.optional().text("parent_sha256", m.parent_sha256);
  a.list("files", m.files);
  a.object("host", m.host);
  a.object("stats", m.stats);
  a.object("tree", m.tree);
}

}  // namespace ckpt::store
