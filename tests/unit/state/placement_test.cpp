// Control groups, NUMA policies: set here, read, and set again in a child.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "lib/base/io.h"
#include "lib/proc/frozen_process.h"
#include "lib/state/cgroups/capture.h"
#include "lib/state/cgroups/restore.h"
#include "lib/state/memory_policies/capture.h"
#include "lib/state/memory_policies/restore.h"
#include "lib/state/tree/child.h"
#include "tests/support/free_pid.h"
#include "tests/support/notes.h"
#include "tests/support/sanitized.h"
#include "tests/support/skip.h"

using namespace ckpt;
namespace fs = std::filesystem;

namespace {

/// A child that sleeps, killed at the end.
struct Sleeper {
  explicit Sleeper(void (*prepare)() = nullptr) {
    pid = ::fork();
    if (pid == 0) {
      if (prepare != nullptr) prepare();
      for (;;) ::pause();
    }
  }
  ~Sleeper() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  pid_t pid;
};

constexpr uint64_t kPlace = 0x510000000000;
constexpr size_t kSize = 1 << 20;

std::string read_text(const std::string& path) {
  auto text = io::read_file(path, 64 << 20);
  REQUIRE(text);
  return *text;
}

}  // namespace

TEST_CASE("cgroups: lines of both versions are read; where their folders are") {
  auto groups = capture::parse_cgroups("12:cpu,cpuacct:/a/b c\n1:name=systemd:/\n0::/user.slice\n");
  REQUIRE(groups);
  CHECK(*groups == std::vector<store::Cgroup>{{"cpu,cpuacct", "/a/b c"}, {"name=systemd", "/"}, {"", "/user.slice"}});
  for (const char* text : {"x", "1:a", "1:a:", "1:a:b"}) CHECK_FALSE(capture::parse_cgroups(text));
  auto mounts = restore::CgroupMounts::parse(
      "30 25 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
      "31 25 0:27 /in /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n"
      "32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
      "33 25 0:29 / /tmp rw - tmpfs tmpfs rw\n");
  CHECK(mounts.folder_of({"name=systemd", "/"}) == "/sys/fs/cgroup/systemd");
  CHECK(mounts.folder_of({"cpu,cpuacct", "/in/deep"}) == "/sys/fs/cgroup/cpu/deep");
  CHECK(mounts.folder_of({"cpu", "/in"}) == "/sys/fs/cgroup/cpu");
  CHECK(mounts.folder_of({"cpu", "/inner"}) == "");
  CHECK(mounts.folder_of({"", "/a"}) == "/sys/fs/cgroup/unified/a");
  CHECK(mounts.folder_of({"", "/../a"}) == "");
  CHECK(mounts.folder_of({"memory", "/a"}) == "");
}

TEST_CASE("cgroups: a process goes back to its group, which is made again if it is gone") {
  auto mounts = restore::CgroupMounts::find();
  REQUIRE(mounts);
  std::string root = mounts->folder_of({"", "/"});
  fs::path folder = fs::path(root) / fmt::format("ckpt-test-{}", ::getpid());
  if (root.empty() || ::mkdir(folder.c_str(), 0755) != 0) {
    ckpt::test::skip("no control group can be made here");
    return;
  }
  std::vector<store::Cgroup> groups;
  {
    Sleeper first;
    REQUIRE(io::write_file(folder / "cgroup.procs", std::to_string(first.pid)));
    auto found = capture::read_cgroups(first.pid, first.pid);
    REQUIRE(found);
    groups = *found;
  }
  test::Notes notes;
  {
    Sleeper second;
    restore::join_cgroups(*mounts, second.pid, groups, notes);
    CHECK(notes.all.empty());
    CHECK(*capture::read_cgroups(second.pid, second.pid) == groups);
    restore::join_cgroups(*mounts, second.pid, groups, notes);
    CHECK(notes.all.empty());
  }
  for (int i = 0; i < 1000 && ::rmdir(folder.c_str()) != 0; ++i) ::usleep(1000);
  REQUIRE_FALSE(fs::exists(folder));
  {
    Sleeper third;
    restore::join_cgroups(*mounts, third.pid, groups, notes);
    CHECK(notes.all.find("made again") != std::string::npos);
    CHECK(*capture::read_cgroups(third.pid, third.pid) == groups);
    notes.all.clear();
    restore::join_cgroups(*mounts, third.pid, {{"nothing-of-that-name", "/"}}, notes);
    CHECK(notes.all.find("not mounted") != std::string::npos);
  }
  for (int i = 0; i < 1000 && ::rmdir(folder.c_str()) != 0; ++i) ::usleep(1000);
}

TEST_CASE("numa: every form of a policy is read") {
  auto found = capture::parse_numa_maps(
      "1000 default file=/a mapped=1 N0=1\n2000 interleave:0-1,4 anon=1\n3000 bind=static:2\n"
      "4000 prefer (many):0-1 file=/x\\040y\n5000 weighted interleave=relative|balancing:1\n6000 local\n7000 prefer:3 "
      "heap\n");
  REQUIRE_MESSAGE(found, found.error().text());
  CHECK(*found == std::vector<store::MappingPolicy>{{0x2000, {3, {0, 1, 4}}},
                                                    {0x3000, {2 | MPOL_F_STATIC_NODES, {2}}},
                                                    {0x4000, {5, {0, 1}}},
                                                    {0x5000, {6 | MPOL_F_RELATIVE_NODES | (1 << 13), {1}}},
                                                    {0x6000, {4, {}}},
                                                    {0x7000, {MPOL_PREFERRED, {3}}}});
  for (const char* text :
       {"x default", "1000 what", "1000 bind:x", "1000 bind:5-2", "1000 bind:0-99999", "1000 bind=odd:0", "1000"})
    CHECK_FALSE(capture::parse_numa_maps(text));
}

TEST_CASE("numa: policies of a thread and of a mapping come back") {
  if (ckpt::test::kThreadSanitized)
    return ckpt::test::skip("the thread sanitizer has threads and addresses of its own");
  Sleeper target([] {
    ::mmap(reinterpret_cast<void*>(kPlace), kSize, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    uint64_t nodes = 1;
    ::syscall(SYS_mbind, kPlace, kSize, MPOL_BIND | MPOL_F_STATIC_NODES, &nodes, 65, 0);
    ::mmap(reinterpret_cast<void*>(kPlace + 2 * kSize), kSize, PROT_READ,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    ::syscall(SYS_mbind, kPlace + 2 * kSize, kSize, MPOL_INTERLEAVE, &nodes, 65, 0);  // as the thread's own
    ::syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &nodes, 65);
  });
  store::MemoryPolicy thread, none{};
  std::vector<store::MappingPolicy> mappings;
  for (int i = 0; i < 1000 && proc::read_small(target.pid, "syscall").value_or("").rfind("34 ", 0) != 0; ++i)
    ::usleep(1000);
  {
    auto frozen = proc::FrozenProcess::freeze(target.pid, 1'000'000, Cancel());
    REQUIRE(frozen);
    auto maps = proc::read_maps(target.pid, false);
    REQUIRE(maps);
    auto gadgets = proc::find_gadgets(target.pid, *maps);
    REQUIRE(gadgets);
    auto area = proc::ParasiteArea::map(target.pid, target.pid, *gadgets);
    REQUIRE(area);
    auto borrowed = proc::BorrowedThread::begin(*area, target.pid);
    REQUIRE(borrowed);
    auto policy = capture::read_thread_policy(*borrowed);
    REQUIRE_MESSAGE(policy, policy.error().text());
    thread = *policy;
    auto own = capture::read_mapping_policies(*borrowed, target.pid);
    REQUIRE_MESSAGE(own, own.error().text());
    mappings = *own;
    REQUIRE(borrowed->finish());
    REQUIRE(area->unmap());
  }
  CHECK(thread == store::MemoryPolicy{MPOL_INTERLEAVE, {0}});
  CHECK(mappings == std::vector<store::MappingPolicy>{{kPlace, {MPOL_BIND | MPOL_F_STATIC_NODES, {0}}},
                                                      {kPlace + 2 * kSize, {MPOL_INTERLEAVE, {0}}}});

  if (::geteuid() != 0) return ckpt::test::skip("needs root");
  auto area = restore::RestorerArea::create({{kPlace, kPlace + kSize}});
  REQUIRE(area);
  auto child = restore::Child::create(free_pid(), *area);
  REQUIRE(child);
  restore::SyscallBatch batch;
  batch.add("map", SYS_mmap, kPlace, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
            -1, 0);
  restore::set_mapping_policy(mappings[0].policy, kPlace, kPlace + kSize, *area, batch);
  restore::set_thread_policy(thread, *area, batch);
  REQUIRE(child->run(batch));
  auto shown = [&] {
    auto found = capture::parse_numa_maps(read_text(fmt::format("/proc/{}/numa_maps", child->pid())));
    REQUIRE(found);
    return *found;
  };
  auto all = shown();
  CHECK(std::find(all.begin(), all.end(), mappings[0]) != all.end());
  CHECK(all.size() > 1);  // the others have the thread's
  CHECK(
      std::all_of(all.begin(), all.end(), [&](const auto& one) { return one == mappings[0] || one.policy == thread; }));
  restore::SyscallBatch reset;
  restore::set_thread_policy(none, *area, reset);
  REQUIRE(child->run(reset));
  CHECK(shown() == std::vector<store::MappingPolicy>{mappings[0]});

  restore::Reasons reasons;
  restore::check_policy(thread, "thread", reasons);
  restore::check_policy(none, "thread", reasons);
  CHECK(reasons.size() == 0);
  restore::check_policy({MPOL_BIND, {1000}}, "thread", reasons);
  CHECK(reasons.size() == 1);
  restore::check_policy({MPOL_BIND, {-1}}, "thread", reasons);
  CHECK(reasons.size() == 2);
}
