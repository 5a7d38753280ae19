// The members of the manifest, each named once: one description that an archive runs forwards (to JSON) or backwards.
//
// An archive A has `Of<T>` (const T& when it writes) and number, hex, hexes, flag, text, texts, octets, numbers,
// choice, object and list. A member that came after format version 3 was first used goes through optional(), as in
// `a.optional().number("x", t.x)`: where it is missing the record keeps its default, which must mean what the state was
// before. Where an older ckpt that passed the member over would restore something wrong, features.h gets a row, too.
// What is an address or a mask is written as "0x..": other programs read JSON numbers as doubles.
#pragma once

#include <array>
#include <limits>

#include "lib/store/image.h"

namespace ckpt::store {

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
  a.number("folders_of", p.fs_of, -1);
  a.number("handlers_of", p.sighand_of, -1);
  a.optional().numbers("inner_groups", p.inner_groups);
  a.optional().numbers("inner_sessions", p.inner_sessions);
  a.optional().number("pid_for_children", p.pid_for_children, -1);
  a.flag("outside_session", p.outside_session);
  a.flag("outside_group", p.outside_group);
  a.number("terminal", p.terminal);
  a.flag("stopped", p.stopped);
  a.optional().number("stop_signal", p.stop_signal, 1, 64);
  a.choice("news", p.wait_status, kWaitStatusNames);
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
  a.optional().number("future_locks", p.future_locks, 0, 6);
  a.optional().number("login_uid", p.login_uid, -1);
  a.hex("personality", p.personality);
  a.number("dumpable", p.dumpable);
  a.number("parent_death_signal", p.parent_death_signal, 0, 64);
  a.flag("child_subreaper", p.child_subreaper);
  a.flag("thp_disabled", p.thp_disabled);
  a.optional().flag("thp_except_advised", p.thp_except_advised);
  a.optional().flag("memory_merge", p.memory_merge);
  a.optional().flag("amx_tiles", p.amx_tiles);
  a.optional().flag("restores_timer_ids", p.restores_timer_ids);
  a.optional().number("futex_slots", p.futex_slots, -1);
  a.optional().number("autogroup_nice", p.autogroup_nice, -20, 19);
  a.number("oom_score_adj", p.oom_score_adj, -1000, 1000);
  a.number("coredump_filter", p.coredump_filter);
  a.optional().numbers("namespaces", p.namespaces);
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
  a.optional().texts("present", g.present);
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
  a.optional().list("io_urings", t.io_urings);
  a.optional().list("aio_contexts", t.aio_contexts);
  a.object("ipc", t.ipc);
  a.list("devices", t.devices);
  a.object("gpu", t.gpu);
  a.optional().object("namespaces", t.namespaces);
  a.optional().flag("labels_recorded", t.labels_recorded);
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
  a.list("rounds", s.iterations, [](auto& sub, auto& iteration) {
    sub.number("pages", iteration.pages);
    sub.number("us", iteration.us);
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
  a.number("gpu_bytes_ahead", s.gpu_bytes_precopied);
  a.number("gpu_bytes_last", s.gpu_bytes_last);
  a.number("gpu_bytes_behind", s.gpu_bytes_deferred);
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
  a.optional().flag("outdated", f.outdated);
}

template <class A>
void describe(A& a, typename A::template Of<JobPart> j) {
  a.text("id", j.id);
  a.number("rank", j.rank, 0);
  a.number("ranks", j.ranks, 0);
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
  a.optional().object("job", m.job);
  a.object("host", m.host);
  a.object("stats", m.stats);
  a.object("tree", m.tree);
}

}  // namespace ckpt::store
