#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/json_writer.h"
#include "lib/state/terminals/record.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

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
    auto& [tid, comm, regs, xstate_offset, xstate_size, signal_mask, pending, alt_base, alt_size, alt_flags, robust,
           robust_size, rseq, rseq_size, rseq_signature, clear_tid, restart, sleep, policy, flags, nice, priority,
           runtime, deadline, period, affinity, ioprio, slack, uid, gid, groups, inheritable, permitted, effective,
           bounding, ambient, securebits, death, speculation, no_new, cgroups, mempolicy, util_min, util_max, mce,
           flusher, labels] = v;
    all(tid, comm, regs, xstate_offset, xstate_size, signal_mask, pending, alt_base, alt_size, alt_flags, robust,
        robust_size, rseq, rseq_size, rseq_signature, clear_tid, restart, sleep, policy, flags, nice, priority, runtime,
        deadline, period, affinity, ioprio, slack, uid, gid, groups, inheritable, permitted, effective, bounding,
        ambient, securebits, death, speculation, no_new, cgroups, mempolicy, flusher, labels);
    death = 12, util_min = 12, util_max = 1024, mce = 1;
    tid = 1 + static_cast<int>(rng_() % 4'000'000);
    nice = static_cast<int>(rng_() % 40) - 20;
  }
  void one(SecurityLabel& v) {
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
    auto& [path, device, inode, size, mtime_ns, mode, build_id, deleted, space, uid, gid, other_name, mounts] = v;
    mounts = 1;
    all(path, device, inode, size, mtime_ns, mode, build_id, deleted, space, uid, gid, other_name);
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
    auto& [kind, inode, name, size, seals, mode, uid, gid, key, id, space, huge_page] = v;
    all(kind, inode, name, size, seals, mode, uid, gid, key, id, space, huge_page);
    space = -1;
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
           sighand_of, outside_session, outside_group, terminal, stopped, stop_signal, wait_status, threads, pending,
           actions, itimers, ptimers, maps, bounds, auxv, vdso, vdso_hash, exe, cwd, root, limits, locks, seccomp,
           cgroups, policies, mask, barriers, future, login_uid, personality, dumpable, death, subreaper, thp,
           thp_but, merge, tiles, timer_ids, slots, autogroup, gpu_thread, oom, filter, further, arguments] = v;
    all(pid, parent, group, session, space, zombie, exit_status, exit_signal, memory_of, descriptors_of, fs_of,
        sighand_of, outside_session, outside_group, terminal, stopped, stop_signal, wait_status, threads, pending,
        actions, itimers, ptimers, maps, bounds, auxv, vdso, vdso_hash, exe, cwd, root, limits, locks, seccomp, cgroups,
        policies, mask, barriers, future, login_uid, personality, dumpable, death, subreaper, thp, thp_but, merge,
        tiles, timer_ids, gpu_thread, oom, filter, arguments);
    slots = 64, autogroup = -7;
    further = {0, 2};
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
  }
  void one(FurtherNamespace& v) {
    auto& [kind, hostname, domainname, ipc_limits, network, mounts] = v;
    all(kind, hostname, domainname, ipc_limits, network, mounts);
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
    auto& [device, type, source, options, files] = v;
    all(device, type, source, options, files);
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

Manifest filled(uint64_t seed) {
  Manifest manifest;
  Fill(seed).one(manifest);
  return manifest;
}

/// A valid manifest with the first `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
  Manifest manifest = small_manifest();
  manifest.id = std::string(32, 'a');
  std::string json = to_json(manifest);
  size_t at = json.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return json.replace(at, from.size(), to);
}

void refused(const std::string& json, const std::string& because, Code code = Code::kCorrupt) {
  auto manifest = parse_manifest(json);
  REQUIRE_FALSE(manifest);
  CHECK(manifest.error().code == code);
  CHECK_MESSAGE(manifest.error().text().find(because) != std::string::npos, manifest.error().text());
}

}  // namespace

TEST_CASE("manifest: every field of a description comes back as it was, names that are no UTF-8 included") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Manifest manifest = filled(seed);
    std::string json = to_json(manifest);
    auto again = parse_manifest(json);
    REQUIRE_MESSAGE(again, why(again));
    CHECK(*again == manifest);
    CHECK(to_json(*again) == json);
  }
}

TEST_CASE("manifest: the text is plain ASCII, one mapping a line where it fits") {
  Manifest manifest = filled(3);
  std::string json = to_json(manifest);
  for (char c : json) REQUIRE(((c >= 0x20 && c < 0x7f) || c == '\n'));
  CHECK(json.rfind("{\n  \"schema\": \"ckpt.image/3\",\n", 0) == 0);
  CHECK(lay_out_json(R"({"a":[1,2],"b":{"c":"x,y:{","d":[]},"e":{}})", 40) ==
        "{\n  \"a\": [1, 2],\n  \"b\": {\"c\": \"x,y:{\", \"d\": []},\n  \"e\": {}\n}\n");
  CHECK(lay_out_json("[1,22,333,4444]", 12) == "[\n  1, 22,\n  333,\n  4444\n]\n");
}

TEST_CASE("manifest: a cut at any byte is refused") {
  std::string json = to_json(filled(5));
  while (json.back() == '\n') json.pop_back();
  for (size_t size = 0; size < json.size(); size += 1 + size / 200) CHECK_FALSE(parse_manifest(json.substr(0, size)));
}

TEST_CASE("manifest: flipped bits never crash the parser") {
  const std::string json = to_json(filled(6));
  Rng rng(1);
  size_t still_fine = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = json;
    bad[rng() % bad.size()] ^= static_cast<char>(1 << rng() % 8);
    auto manifest = parse_manifest(bad);
    if (manifest) ++still_fine;
    else REQUIRE(!manifest.error().message.empty());
  }
  CHECK(still_fine < 2000);
}

TEST_CASE("manifest: features that this ckpt does not know are refused by name, before anything else is looked at") {
  refused(changed("\"features\": []", "\"features\": [\"time travel\"]"), "time travel", Code::kUnsupported);
  refused(changed("\"features\": []", "\"features\": [1]"), "features[0]: is not a string");
  auto without = parse_manifest(changed("\"features\": [],", ""));
  REQUIRE(without);
  CHECK(without->features.empty());
}

TEST_CASE("manifest: wrong types, ranges and relations are refused with their place") {
  refused("", "is not JSON");
  refused("[]", "is not a JSON object");
  refused("{}", "schema");
  refused(changed("ckpt.image/3", "other/1"), "schema");
  refused(changed("ckpt.image/3", "ckpt.image/2"), "ckpt.image/2", Code::kUnsupported);
  refused(changed("\"tid\": 4711", "\"tid\": \"4711\""), "tree.processes[0].threads[0].tid: is not an integer");
  refused(changed("\"tid\": 4711", "\"tid\": 4711.0"), "tree.processes[0].threads[0].tid: is not an integer");
  refused(changed("\"tid\": 4711", "\"tid\": true"), "tree.processes[0].threads[0].tid: is not an integer");
  refused(changed("\"tid\": 4711", "\"tid\": 0"), "tree.processes[0].threads[0].tid: is out of range");
  refused(changed("\"tid\": 4711", "\"tid\": 4294967297"), "tree.processes[0].threads[0].tid: is out of range");
  refused(changed("\"tid\": 4711", "\"tid\": 18446744073709551616"),
          "tree.processes[0].threads[0].tid: is not an integer");
  refused(changed("\"tid\": 4711", "\"dit\": 4711"), "tree.processes[0].threads[0].tid: is missing");
  const std::string map =
      "\"maps\": [{\"start\": \"0x1000\", \"end\": \"0x2000\", \"prot\": \"r--\", \"kind\": \"anonymous\", \"name\": "
      "\"\", "
      "\"file\": -1, \"shared_memory\": -1, \"file_offset\": \"0x0\", \"flags\": ";
  CHECK(parse_manifest(changed("\"maps\": []", map + "[\"rd\", \"mr\"], \"guards\": []}]")));
  for (const char* flags : {"[\"rd\", \"rdw\"]", "[\"rd\", \"\"]"})
    refused(changed("\"maps\": []", map + flags + ", \"guards\": []}]"),
            "tree.processes[0].maps[0].flags[1]: does not have two letters");
  refused(changed("\"maps\": []", map + "[\"rd\", 7], \"guards\": []}]"),
          "tree.processes[0].maps[0].flags[1]: is not a string");
  refused(changed("\"maps\": []", map + "\"rd\", \"guards\": []}]"),
          "tree.processes[0].maps[0].flags: is not an array");
  refused(changed("\"nice\": 0", "\"nice\": 20"), "tree.processes[0].threads[0].nice: is out of range");
  refused(changed("\"xstate_size\": 0", "\"xstate_size\": -1"),
          "tree.processes[0].threads[0].xstate_size: is out of range");
  refused(changed("\"rip\": \"0x0\"", "\"rip\": \"0x\""),
          "tree.processes[0].threads[0].regs.rip: is not 0x and hex digits");
  refused(changed("\"rip\": \"0x0\"", "\"rip\": \"0x11112222333344445\""), "tree.processes[0].threads[0].regs.rip");
  refused(changed("\"rip\": \"0x0\"", "\"rip\": \"0xg\""), "tree.processes[0].threads[0].regs.rip");
  refused(changed("\"rip\": \"0x0\"", "\"rip\": 0"), "tree.processes[0].threads[0].regs.rip");
  refused(changed("\"comm\": \"target\"", "\"comm\": \"a\\u0000b\""), "tree.processes[0].threads[0].comm: holds a NUL");
  refused(changed("\"comm\": \"target\"", "\"comm\": {\"hex\": \"6100\"}"),
          "tree.processes[0].threads[0].comm: holds a NUL");
  refused(changed("\"comm\": \"target\"", "\"comm\": {\"hex\": \"61f\"}"),
          "tree.processes[0].threads[0].comm: is not a string");
  refused(changed("\"comm\": \"target\"", "\"comm\": null"), "tree.processes[0].threads[0].comm: is not a string");
  refused(changed("\"restart\": \"none\"", "\"restart\": \"some\""),
          "tree.processes[0].threads[0].restart: is not a value");
  refused(changed("\"uid\": [0, 0, 0, 0]", "\"uid\": [0, 0, 0]"),
          "tree.processes[0].threads[0].uid: has 3 elements, not 4");
  refused(changed("\"uid\": [0, 0, 0, 0]", "\"uid\": [0, 0, -1, 0]"),
          "tree.processes[0].threads[0].uid[2]: is out of range");
  refused(changed("\"affinity\": \"\"", "\"affinity\": \"F\""), "tree.processes[0].threads[0].affinity");
  refused(changed("\"exe\": -1", "\"exe\": 0"), "tree.processes[0].exe: refers to an entry that is not there");
  refused(changed("\"exe\": -1", "\"exe\": -2"), "tree.processes[0].exe: is out of range");
  refused(changed("\"arguments\": [\"target\", \"--flag\"]", "\"arguments\": {}"),
          "tree.processes[0].arguments: is not an array");
  refused(changed("\"id\": \"a", "\"id\": \"x"), "id: is not 32 hex digits");
  refused(changed("\"parent_path\": \"\"", "\"parent_path\": \"../x\""), "parent_path");
}

TEST_CASE("manifest: device memory that does not fit together is refused") {
  auto with = [](const std::function<void(DeviceMemory&)>& change) {
    Manifest manifest = small_manifest();
    manifest.id = std::string(32, 'a');
    manifest.files = {{"pipes", 96, std::string(32, '0')}};
    DeviceMemory& memory = manifest.tree.devices.emplace_back();
    memory.space = 7;
    memory.allocations = {{1, 0x10000, 4 * kBlockSize, "GPU-1", 0, {{0, 1}, {2, 2}}},
                          {2, 0x90000, kBlockSize, "GPU-2", 80, {}}};
    memory.launches = {{5, {0, 255}, "scatter", {{1, 2}}, {}}};
    change(memory);
    return parse_manifest(to_json(manifest));
  };
  auto refused = [&](const std::function<void(DeviceMemory&)>& change, const std::string& what) {
    auto parsed = with(change);
    REQUIRE_FALSE(parsed);
    CHECK_MESSAGE(why(parsed).find("tree.devices[0]" + what) != std::string::npos, why(parsed));
  };
  auto good = with([](DeviceMemory&) {});
  REQUIRE_MESSAGE(good, why(good));
  CHECK(good->tree.devices[0].launches[0].record == std::vector<uint8_t>{0, 255});
  const uint64_t all = ~uint64_t{0};
  refused([](DeviceMemory& m) { m.process = 1; }, ".process: refers");
  refused([](DeviceMemory& m) { m.space = 1 << 16; }, ".space");
  refused([](DeviceMemory& m) { m.allocations[0].size = 0; }, ".allocations[0]: is not made");
  refused([](DeviceMemory& m) { m.allocations[0].size += 4096; }, ".allocations[0]: is not made");
  refused([](DeviceMemory& m) { m.allocations[0].address += 1; }, ".allocations[0]: is not made");
  refused([](DeviceMemory& m) { m.allocations[1].address = 0x40000; }, ".allocations[1]: overlaps");
  refused([](DeviceMemory& m) { m.allocations[1].address = uint64_t{1} << 48; }, ".allocations[1]: overlaps");
  refused([](DeviceMemory& m) { m.allocations[1].size = all - 0xffff; }, ".allocations[1]: overlaps");
  refused([](DeviceMemory& m) { m.allocations[0].hashes_offset = 33; }, ".allocations[0].hashes_offset");
  refused([](DeviceMemory& m) { m.allocations[1].hashes_offset = all; }, ".allocations[1].hashes_offset");
  refused([](DeviceMemory& m) { m.allocations[0].recomputed = {{2, 1}, {0, 1}}; }, ".allocations[0].recomputed");
  refused([](DeviceMemory& m) { m.allocations[0].recomputed = {{1, 4}}; }, ".allocations[0].recomputed");
  refused([&](DeviceMemory& m) { m.allocations[0].recomputed = {{all, 2}}; }, ".allocations[0].recomputed");
  refused([](DeviceMemory& m) { m.allocations[0].recomputed = {{1, 0}}; }, ".allocations[0].recomputed");
}

TEST_CASE("manifest: members may come in any order and with unknown ones between them, but none twice") {
  Manifest manifest = small_manifest();
  manifest.id = std::string(32, 'a');
  auto equal = [&](const std::string& json) {
    auto again = parse_manifest(json);
    REQUIRE_MESSAGE(again, why(again));
    CHECK(*again == manifest);
  };
  equal(changed("\"tid\": 4711,", "\"new\": {\"tid\": [null, 1.5e3, {}]}, \"tid\": 4711, \"newer\": \"\\u20ac\","));
  equal(changed("{\n  \"schema\":", "{\"\\u00e9\": true, \"sch\\u0065ma\":"));
  // Of all objects the last member first.
  std::function<nlohmann::ordered_json(const nlohmann::ordered_json&)> turned =
      [&](const nlohmann::ordered_json& json) {
        nlohmann::ordered_json out =
            json.is_object() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
        if (!json.is_structured()) return json;
        if (json.is_array()) {
          for (const auto& element : json) out.push_back(turned(element));
          return out;
        }
        std::vector<std::string> names;
        for (const auto& [name, value] : json.items()) names.insert(names.begin(), name);
        for (const auto& name : names) out[name] = turned(json[name]);
        return out;
      };
  equal(turned(nlohmann::ordered_json::parse(changed("", ""))).dump());
  refused(changed("\"tid\": 4711,", "\"tid\": 4711, \"tid\": 4711,"),
          "tree.processes[0].threads[0]: has two members 'tid'");
  refused(changed("\"kind\": \"dump\",", "\"x\": 1, \"x\": 1, \"kind\": \"dump\","), "has two members 'x'");
  std::string many = "\"x0\": 0, ";
  for (int i = 1; i <= 20'000; ++i) many += "\"x" + std::to_string(i) + "\": 0, ";
  refused(changed("\"tid\":", many + "\"tid\":"), "tree.processes[0].threads[0]: has more than 10000 members");
}

TEST_CASE("manifest: what is no JSON is told with its byte, wherever it is") {
  refused(changed("\"tid\": 4711", "\"tid\": 04711"), "is not JSON: a number begins with 0 at byte");
  refused(changed("\"pipes\": []", "\"pipes\": [}"), "is not JSON: ");
  refused(changed("", "") + "{}", "is not JSON: there is text behind its end");
  refused(changed("\"comm\": \"target\"", "\"comm\": \"\xff\""), "is not JSON: there is invalid UTF-8");
}

TEST_CASE("manifest: mappings must be in order, whole pages, with their indices and guards inside") {
  auto with = [](const std::function<void(TreeImage&)>& change) {
    Manifest manifest = small_manifest();
    manifest.id = std::string(32, 'a');
    manifest.tree.processes[0].maps.resize(2);
    manifest.tree.processes[0].maps[0].start = 0x1000, manifest.tree.processes[0].maps[0].end = 0x3000;
    manifest.tree.processes[0].maps[1].start = 0x3000, manifest.tree.processes[0].maps[1].end = 0x4000;
    change(manifest.tree);
    return to_json(manifest);
  };
  CHECK(parse_manifest(with([](TreeImage&) {})));
  refused(with([](TreeImage& t) { t.processes[0].maps[1].start = 0x2000; }), "tree.processes[0].maps[1]");
  refused(with([](TreeImage& t) { t.processes[0].maps[1].start = 0x4000; }), "tree.processes[0].maps[1]");
  refused(with([](TreeImage& t) { t.processes[0].maps[0].start = 0x1001; }), "tree.processes[0].maps[0]");
  refused(with([](TreeImage& t) { t.processes[0].maps[0].file = 0; }), "tree.processes[0].maps[0].file");
  refused(with([](TreeImage& t) {
            t.processes[0].maps[0].guards = {{0x2000, 0x4000}};
          }),
          "tree.processes[0].maps[0].guards");
  refused(with([](TreeImage& t) { t.descriptors.resize(1), t.descriptors[0].pipe = 0; }), "tree.descriptors[0].pipe");
  refused(with([](TreeImage& t) { t.processes[0].threads.clear(); }), "tree.processes[0].threads: is empty");
}

TEST_CASE("manifest: nesting and numbers of values are bounded before a tree is built") {
  refused(std::string(1'000'000, '['), "is nested deeper than");
  std::string deep = changed("\"arguments\": [\"target\", \"--flag\"]",
                             "\"x\": " + std::string(100'000, '[') + std::string(100'000, ']') + ", \"arguments\": []");
  refused(deep, "is nested deeper than");
  std::string many = "[0";
  for (int i = 0; i < 13'000'000; ++i) many += ",0";
  refused(many + "]", "holds more than");
  refused(std::string((256u << 20) + 1, ' '), "is larger than");
}
