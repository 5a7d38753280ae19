// A description of processes with random values in every field.
#pragma once

#include <limits>

#include "lib/state/terminals/record.h"
#include "tests/unit/store/helpers.h"

namespace ckpt::store::test {

/// Fills every field of the description with random values. The structured bindings name all fields of a struct: one
/// that is added later does not compile until it is filled, and so compared, here.
class Fill {
 public:
  explicit Fill(uint64_t seed) : rng_(seed) {}

  template <class... T>
  void all(T&... fields) { (one(fields), ...); }

  template <class I>
    requires std::is_integral_v<I>
  void one(I& v) { v = static_cast<I>(rng_() >> (rng_() % 64)); }
  void one(bool& v) { v = rng_() % 2 != 0; }
  void one(std::string& v) {
    static const std::vector<std::string> kTexts = {"",
                                                    "plain",
                                                    "with \"quotes\" and \\ and / and \t",
                                                    "\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
                                                    "broken \xff\xc3 utf-8",
                                                    "overlong \xc0\xaf",
                                                    "surrogate \xed\xa0\x80",
                                                    "controls \x01\x1b[31m\x7f",
                                                    "{\"hex\": \"00\"}",
                                                    "[,:]"};
    v = kTexts[rng_() % kTexts.size()];
  }
  template <class T, size_t N>
  void one(std::array<T, N>& v) { for (T& x : v) one(x); }
  template <class A, class B>
  void one(std::pair<A, B>& v) { one(v.first), one(v.second); }
  template <class T>
  void one(std::vector<T>& v) {
    v.resize(rng_() % 4);
    for (size_t i = 0; i < v.size(); ++i) {
      T x{};
      one(x);
      v[i] = x;
    }
  }

  void one(Registers& v) { auto& [value] = v; all(value); }
  void one(QueuedSignal& v) {
    auto& [signo, siginfo] = v;
    all(signo, siginfo);
    signo = 1 + static_cast<int>(rng_() % 64);
    siginfo.resize(128);
    for (uint8_t& b : siginfo) one(b);
  }
  void one(SignalAction& v) {
    auto& [signo, handler, flags, restorer, mask] = v;
    all(signo, handler, flags, restorer, mask);
    signo = 64;
  }
  void one(IntervalTimer& v) {
    auto& [which, interval_us, value_us] = v;
    all(which, interval_us, value_us);
    which = static_cast<int>(rng_() % 3);
  }
  void one(PosixTimer& v) {
    auto& [id, clock, notify, signo, tid, sigval, interval_ns, value_ns] = v;
    all(id, clock, notify, signo, tid, sigval, interval_ns, value_ns);
    for (int* n : {&id, &notify, &tid}) *n &= std::numeric_limits<int>::max();
    signo &= 63;
  }
  void one(RestartKind& v) { v = static_cast<RestartKind>(rng_() % 3); }
  void one(MappingKind& v) { v = static_cast<MappingKind>(rng_() % 5); }
  void one(DescriptorKind& v) { v = static_cast<DescriptorKind>(rng_() % kDescriptorKinds.size()); }
  void one(WaitStatus& v) { v = static_cast<WaitStatus>(rng_() % 3); }
  void one(SharedMemory::Kind& v) { v = static_cast<SharedMemory::Kind>(rng_() % 3); }
  void one(Thread& v) {
    auto& [tid, inner_tids, comm, regs, xstate_offset, xstate_size, signal_mask, pending, alt_base, alt_size,
           alt_flags, robust, robust_size, rseq, rseq_size, rseq_signature, clear_tid, restart, sleep, policy, flags,
           nice, priority, runtime, deadline, period, affinity, ioprio, slack, uid, gid, groups, inheritable,
           permitted, effective, bounding, ambient, securebits, death, speculation, no_new, cgroups, mempolicy,
           util_min, util_max, mce, flusher, labels, personality] = v;
    all(tid, inner_tids, comm, regs, xstate_offset, xstate_size, signal_mask, pending, alt_base, alt_size, alt_flags,
        robust, robust_size, rseq, rseq_size, rseq_signature, clear_tid, restart, sleep, policy, flags, nice,
        priority, runtime, deadline, period, affinity, ioprio, slack, uid, gid, groups, inheritable, permitted,
        effective, bounding, ambient, securebits, death, speculation, no_new, cgroups, mempolicy, flusher, labels);
    death = 12, util_min = 12, util_max = 1024, mce = 1, personality = 0x0040000;
    tid = 1 + static_cast<int>(rng_() % 4'000'000);
    nice = static_cast<int>(rng_() % 40) - 20;
  }
  void one(SecurityLabel& v) {
    auto& [name, value] = v;
    all(name, value);
  }
  void one(ExtendedAttribute& v) {
    auto& [name, value] = v;
    all(name, value);
  }
  void one(VmFlags& v) {
    static const std::vector<std::string> kFlags = {"rd", "wr", "mr", "mw", "me", "gd", "ac", "dc", "wf", "??"};
    for (size_t i = 0, count = rng_() % 10; i < count; ++i) v.add(kFlags[rng_() % kFlags.size()]);
  }
  void one(MemoryMap& v) {
    auto& [start, end, prot, kind, name, file, shared, file_offset, flags, guards] = v;
    all(start, end, prot, kind, name, file, shared, file_offset, flags, guards);
    shared = index();
    // In order, each with its guards inside.
    start = map_end_ + rng_() % 10 * kPageSize;
    end = map_end_ = start + (1 + rng_() % 1000) * kPageSize;
    prot = static_cast<int>(rng_() % 8);
    file = index();
    for (auto& guard : guards) guard = {start, start + kPageSize};
  }
  void one(FileIdentity& v) {
    auto& [path, device, inode, size, mtime_ns, mode, build_id, deleted, space, uid, gid, other_name, mounts, hint,
           attributes] = v;
    mounts = 1, hint = 5;
    all(path, device, inode, size, mtime_ns, mode, build_id, deleted, space, uid, gid, other_name, attributes);
    space = kMaxSpaces - 1;
  }
  void one(EpollEntry& v) {
    auto& [process, target_fd, descriptor, events, data] = v;
    all(process, target_fd, events, data);
    process = 0;
    target_fd &= std::numeric_limits<int>::max();
  }
  void one(ProcessHandle& v) { v.pid = static_cast<int>(rng_() % 1000) - 1; }
  void one(FileLock& v) { v = {LockKind::kPosix, rng_() % 2 != 0, 4096, -1}; }
  void one(ProcessLock& v) {
    auto& [fd, lock] = v;
    all(fd, lock);
    fd &= std::numeric_limits<int>::max();
  }
  void one(SeccompFilter& v) {
    auto& [log, program] = v;
    all(log, program);
    program.resize(16);
  }
  void one(ThreadSeccomp& v) {
    auto& [mode, speculation, chain] = v;
    all(speculation, chain);
    mode = static_cast<int>(rng_() % 3);
  }
  void one(Seccomp& v) {
    auto& [filters, threads] = v;
    all(filters, threads);
  }
  void one(Cgroup& v) {
    auto& [controllers, path] = v;
    all(controllers, path);
  }
  void one(MemoryPolicy& v) {
    auto& [mode, nodes] = v;
    all(mode, nodes);
    mode &= 0xffff;
  }
  void one(MappingPolicy& v) {
    auto& [start, policy] = v;
    all(start, policy);
  }
  void one(IpcIdentity& v) {
    auto& [id, key, mode, uid, gid] = v;
    all(id, key, mode, uid, gid);
    id &= std::numeric_limits<int>::max(), mode &= 0777;
  }
  void one(SharedSegment& v) {
    auto& [identity, size, destroyed, locked] = v;
    all(identity, size, destroyed, locked);
  }
  void one(Semaphore& v) {
    auto& [value, pid] = v;
    all(value, pid);
    value &= 32767, pid &= std::numeric_limits<int>::max();
  }
  void one(SemaphoreSet& v) {
    auto& [identity, semaphores] = v;
    all(identity, semaphores);
  }
  void one(IpcMessage& v) {
    auto& [type, bytes] = v;
    all(bytes);
    type = 1 + static_cast<int>(rng_() % 1000);
  }
  void one(IpcQueue& v) {
    auto& [identity, max_bytes, sender, receiver, messages] = v;
    all(identity, max_bytes, sender, receiver, messages);
    sender &= std::numeric_limits<int>::max(), receiver &= std::numeric_limits<int>::max();
  }
  void one(SemaphoreAdjustments& v) {
    auto& [process, set, changes] = v;
    all(changes);
    process = set = 0;
  }
  void one(SystemVIpc& v) {
    auto& [segments, sets, queues, adjustments] = v;
    all(segments, sets, queues, adjustments);
    if (sets.empty()) adjustments.clear();
  }
  void one(SharedMemory& v) {
    auto& [kind, inode, name, size, seals, mode, uid, gid, key, id, space, huge_page, hint, attributes] = v;
    all(kind, inode, name, size, seals, mode, uid, gid, key, id, space, huge_page, attributes);
    space = -1, hint = 4;
  }
  void one(FdSlot& v) {
    auto& [process, fd, close_on_exec] = v;
    all(process, fd, close_on_exec);
    process = 0, fd &= std::numeric_limits<int>::max();
  }
  void one(Epoll& v) {
    auto& [entries, busy_poll] = v;
    all(entries, busy_poll);
    busy_poll[0] &= INT32_MAX, busy_poll[1] &= UINT16_MAX, busy_poll[2] &= 1;
  }
  void one(Eventfd& v) {
    auto& [count, semaphore] = v;
    all(count, semaphore);
  }
  void one(Timerfd& v) {
    auto& [clock, settime, ticks, interval, value] = v;
    all(clock, settime, ticks, interval, value);
  }
  void one(Signalfd& v) {
    auto& [mask] = v;
    all(mask);
  }
  void one(Descriptor& v) {
    auto& [kind, fds, flags, offset, file, shared, external, null, written, object, pipe, epoll, eventfd, signalfd,
           timerfd, owner_type, owner_pid, owner_signal, locks] = v;
    all(kind, fds, flags, offset, file, shared, external, null, written, object, pipe, epoll, eventfd, signalfd,
        timerfd, owner_type, owner_pid, owner_signal, locks);
    object = -1;
    file = index(), pipe = index(), shared = index();
  }
  void one(Pipe& v) {
    auto& [capacity, content_offset, content_size] = v;
    all(capacity, content_offset, content_size);
  }
  void one(ResourceLimit& v) {
    auto& [resource, soft, hard] = v;
    all(resource, soft, hard);
    resource = 15, soft = ~uint64_t{0};
  }
  void one(MemoryBounds& v) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = v;
    all(a, b, c, d, e, f, g, h, i, j, k);
  }
  void one(ProcessImage& v) {
    auto& [pid, parent, group, session, space, zombie, exit_status, exit_signal, memory_of, descriptors_of, fs_of,
           sighand_of, inner_groups, inner_sessions, pid_for_children, outside_session, outside_group, terminal,
           stopped, stop_signal, wait_status, threads, pending, actions, itimers, ptimers, maps, bounds, auxv, vdso,
           vdso_hash, exe, cwd, root, limits, locks, seccomp, cgroups, policies, mask, barriers, future, login_uid,
           personality, dumpable, death, subreaper, thp, thp_but, merge, tiles, timer_ids, slots, autogroup,
           gpu_thread, oom, filter, further, arguments] = v;
    all(pid, parent, group, session, space, zombie, exit_status, exit_signal, memory_of, descriptors_of, fs_of,
        sighand_of, inner_groups, inner_sessions, outside_session, outside_group, terminal, stopped, stop_signal,
        wait_status, threads, pending, actions, itimers, ptimers, maps, bounds, auxv, vdso, vdso_hash, exe, cwd, root,
        limits, locks, seccomp, cgroups, policies, mask, barriers, future, login_uid, personality, dumpable, death,
        subreaper, thp, thp_but, merge, tiles, timer_ids, gpu_thread, oom, filter, arguments);
    slots = 64, autogroup = -7;
    further = {0, 2}, pid_for_children = 2;
    for (int* n : {&pid, &parent, &group, &session}) *n &= std::numeric_limits<int>::max();
    space = 7, exit_signal = 17, memory_of = descriptors_of = fs_of = sighand_of = -1;
    map_end_ = 0;
    exe = index(), cwd = index(), root = index();
    threads.emplace_back();
    one(threads.back());
    mask = 0777, death = 9, oom = -1000, gpu_thread = 12, stop_signal = 20, login_uid &= 0xffffffff, future = 6;
  }
  void one(KernelSetting& v) {
    auto& [path, value] = v;
    all(path, value);
  }
  void one(NetworkLink& v) {
    auto& [index, name, kind, alias, flags, mtu, queue, group, address, master, lower, data, port] = v;
    all(name, kind, alias, flags, mtu, queue, group, data, port);
    address = {2, 0, 0, 0, 0, 7}, index = 3, master = 1, lower = 0;
  }
  void one(NetworkMessage& v) { v.message = {2, 0, 24}; }
  void one(Network& v) {
    auto& [loopback_up, settings, beyond, links, addresses, routes, rules, neighbours, filters] = v;
    all(loopback_up, settings, beyond, links, addresses, routes, rules, neighbours, filters);
  }
  void one(Clocks& v) { v = {1'000'000'000'000, 2'000'000'000'001}; }
  void one(IdRange& v) {
    auto& [inside, outside, count] = v;
    all(inside, outside, count);
  }
  void one(UserNamespace& v) {
    auto& [uids, gids, denies_setgroups, owner, owns] = v;
    all(uids, gids, denies_setgroups, owner, owns);
  }
  void one(Namespaces& v) {
    auto& [own, hostname, domainname, ipc_limits, clocks, network, groups, user, mounts, further] = v;
    all(own, hostname, domainname, ipc_limits, clocks, network, groups, user, mounts, further);
    for (size_t i = 0; i < further.size(); ++i) further[i].parent = static_cast<int>(i) - 1;
  }
  void one(FurtherNamespace& v) {
    auto& [kind, parent, hostname, domainname, ipc_limits, network, mounts] = v;
    all(kind, parent, hostname, domainname, ipc_limits, network, mounts);
  }
  void one(FileAttribute& v) {
    auto& [name, value] = v;
    all(name, value);
  }
  void one(MemoryFile& v) {
    auto& [path, mode, uid, gid, inode, device, size, mtime, target, link_of, attributes, space] = v;
    all(path, mode, uid, gid, inode, device, size, mtime, target, attributes);
    link_of = -1, space = 17;
  }
  void one(MountedFilesystem& v) {
    auto& [device, type, source, options, files, pid_namespace] = v;
    all(device, type, source, options, files);
    pid_namespace = 4;
  }
  void one(Mount& v) {
    auto& [parent, filesystem, root, point, options, shared, slave, external, host, device, inode, problem] = v;
    all(root, point, options, shared, slave, external, host, device, inode, problem);
    parent = -1, filesystem = 3;
  }
  void one(Mounts& v) {
    auto& [filesystems, mounts] = v;
    all(filesystems, mounts);
  }
  void one(TreeImage& v) {
    // The records of sockets and other objects have tests of their own.
    auto& [processes, files, descriptors, pipes, shared, sockets, filter, terminals, ends, inotifies, fanotifies,
           handles, queues, rings, contexts, ipc, devices, gpu, namespaces, labels_recorded] = v;
    all(processes, files, descriptors, pipes, shared, filter, handles, ipc, namespaces, labels_recorded);
    gpu = {"driver 1", {{"GPU-1", "a", 7}}, {"GPU-1", "GPU-2"}};
    sockets.resize(1), terminals.resize(1), ends.resize(1), inotifies.resize(1), fanotifies.resize(1), queues.resize(1);
    ends[0].terminal = 0, queues[0].max_messages = queues[0].message_size = 1;
    rings = {{.sq_entries = 8, .cq_entries = 16, .sqe_size = 128, .cqe_size = 32, .no_array = true, .submitted = ~0u,
              .completed = ~0u - 1, .rings_size = 640, .content_offset = 3, .content_size = 1152, .files = {-1, -1},
              .buffers = {{4096, 100}, {}}, .process = 0, .views = {{0, 8192}}, .numbers = {{7, 15}},
              .eventfd_async = true, .flags = 1 << 7, .disabled = true, .poller = {{20, 1, -1}},
              .personalities = {{3, {1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10}, ~0ull}},
              .restrictions = {{~0ull, 5, 16, 1}}, .file_tags = {0, 7}, .buffer_tags = {~0ull, 0},
              .workers = {{1, 2, 3}}}};
    contexts = {{.process = 0, .start = 8192, .events = 127, .requests = 9, .content_offset = 5, .content_size = 4096}};
    devices.resize(1);
    terminals[0].settings.resize(kTerminalSettingsSize), terminals[0].locked_settings.resize(kTerminalLockedSize);
    files.resize(kEntries), pipes.resize(kEntries), shared.resize(kEntries);
    processes.emplace_back();
    one(processes.back());
    if (processes.size() > 1) processes[1].memory_of = 0;
  }
  void one(HostFacts& v) {
    auto& [hostname, kernel, machine, boot_id, cpu_model, cpu_flags, xcr0, page_size] = v;
    all(hostname, kernel, machine, boot_id, cpu_model, cpu_flags, xcr0, page_size);
  }
  void one(CaptureStats& v) {
    auto& [frozen, stops, rounds, faults, ran, waited, scanned, copied, zero, unchanged, memory, written, held, gpu,
           ahead, last, behind, saved, phases] = v;
    all(frozen, stops, rounds, faults, ran, waited, scanned, copied, zero, unchanged, memory, written, held, gpu, ahead,
        last, behind, saved, phases);
  }
  void one(CaptureIteration& v) {
    auto& [pages, us] = v;
    all(pages, us);
  }
  void one(Savings& v) {
    auto& [zero, same, other, unwritten, equal, elsewhere, compression] = v;
    all(zero, same, other, unwritten, equal, elsewhere, compression);
  }
  void one(StoredFile& v) {
    auto& [name, size, xxh128, sha256, outdated] = v;
    all(name, size, outdated);
    xxh128 = rng_() % 2 != 0 ? "" : id();
    sha256 = rng_() % 2 != 0 ? "" : id() + id();
  }
  void one(Manifest& v) {
    auto& [own, created, kind, parent_path, parent_id, parent_sha256, features, files, job, host, tree, stats] = v;
    all(created, kind, files, host, tree, stats);
    job = rng_() % 2 != 0 ? JobPart() : JobPart{id(), 2, 5};
    own = id();
    parent_path = rng_() % 2 != 0 ? "" : "../p\xff";
    parent_id = parent_path.empty() ? "" : id();
    parent_sha256 = parent_path.empty() ? "" : id() + id();
  }

 private:
  static constexpr size_t kEntries = 4;
  int index() { return static_cast<int>(rng_() % (kEntries + 1)) - 1; }
  std::string id() { return "0123456789abcdef0123456789abcdef"; }

  Rng rng_;
  uint64_t map_end_ = kPageSize;
};

inline Manifest filled(uint64_t seed) {
  Manifest manifest;
  Fill(seed).one(manifest);
  return manifest;
}

}  // namespace ckpt::store::test
