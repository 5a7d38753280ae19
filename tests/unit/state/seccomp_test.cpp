// Filters installed in a child with threads, read from outside, installed in another, and tried.
#include "lib/state/seccomp/capture.h"

#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <thread>

#include "lib/proc/borrowed_thread.h"
#include "lib/proc/frozen_process.h"
#include "lib/proc/host.h"
#include "lib/proc/procfs.h"
#include "lib/proc/seccomp.h"
#include "lib/state/seccomp/restore.h"
#include "lib/state/tree/child.h"
#include "tests/support/free_pid.h"
#include "tests/support/sanitized.h"
#include "tests/support/skip.h"
#include "tests/support/two_threads.h"

using namespace ckpt;

namespace {

bool may_read_filters() {
  constexpr int kSysAdmin = 21;
  if (proc::has_capability(kSysAdmin)) return true;
  ckpt::test::skip("reading filters needs CAP_SYS_ADMIN");
  return false;
}

/// `number` fails with `error`; everything else is allowed.
void refuse(long number, int error, unsigned flags) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog all{4, program};
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &all) != 0) ::_exit(9);
}

/// The main thread refuses two calls and both threads the first of them; the second thread one more.
[[noreturn]] void run_target(std::atomic<int>& ready) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  refuse(SYS_getpriority, 41, 0);
  std::thread other([&] {
    refuse(SYS_sysinfo, 43, SECCOMP_FILTER_FLAG_LOG);
    ready.fetch_add(1);
    for (;;) ::pause();
  });
  while (ready == 0) ::usleep(100);
  refuse(SYS_times, 42, 0);
  ready.fetch_add(1);
  for (;;) ::pause();
}

}  // namespace

TEST_CASE("seccomp: the chains of two threads come back, shared where they were, and refuse what they refused") {
  if (ckpt::test::kThreadSanitized)
    return ckpt::test::skip("the thread sanitizer has threads and addresses of its own");
  if (!may_read_filters()) return;
  auto* ready =
      static_cast<std::atomic<int>*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pid_t target = ::fork();
  if (target == 0) run_target(*ready);
  for (int i = 0; i < 5000 && *ready < 2; ++i) ::usleep(1000);
  REQUIRE(*ready == 2);
  store::Seccomp found;
  {
    auto frozen = proc::FrozenProcess::freeze(target, 1'000'000, Cancel());
    REQUIRE(frozen);
    auto described = capture::describe_seccomp(target, frozen->threads());
    REQUIRE_MESSAGE(described, described.error().text());
    found = *described;
  }
  ::kill(target, SIGKILL);
  ::waitpid(target, nullptr, 0);
  ::munmap(ready, 4096);
  REQUIRE(found.threads.size() == 2);
  CHECK(found.filters.size() == 3);
  CHECK(found.threads[0].chain == std::vector<uint32_t>{0, 1});
  CHECK(found.threads[1].chain == std::vector<uint32_t>{0, 2});
  CHECK(found.filters[2].log);
  CHECK_FALSE(found.filters[0].log);

  int pid = free_pid(), tid = free_pid();
  auto area = restore::RestorerArea::create({});
  REQUIRE(area);
  auto child = child_of_two_threads(pid, tid, *area);
  REQUIRE(child);
  REQUIRE(restore::check_seccomp(found, 2));
  for (int thread : {pid, tid}) REQUIRE(proc::set_options(thread, PTRACE_O_EXITKILL | proc::kSuspendSeccomp));
  restore::SyscallBatch common;
  restore::install_common_filters(found, *area, common);
  CHECK(common.size() == 1);
  REQUIRE(child->run(common));
  std::vector<restore::SyscallBatch> own(2);
  restore::install_own_filters(found, *area, own);
  REQUIRE(child->run_all({{pid, &own[0]}, {tid, &own[1]}}));
  auto again = capture::describe_seccomp(pid, {pid, tid});
  REQUIRE(again);
  CHECK(*again == found);

  auto try_calls = [&](std::array<int64_t, 3> first, std::array<int64_t, 3> second) {
    restore::SyscallBatch tries[2];
    for (restore::SyscallBatch& batch : tries) {
      batch.try_add("try", SYS_getpriority, 0, 0);
      batch.try_add("try", SYS_times, 0);
      batch.try_add("try", SYS_sysinfo, 0);
    }
    REQUIRE(child->run_all({{pid, &tries[0]}, {tid, &tries[1]}}));
    for (size_t i = 0; i < 3; ++i) {
      CHECK((tries[0].calls()[i].result == first[i] || (first[i] == 0 && tries[0].calls()[i].result > -40)));
      CHECK((tries[1].calls()[i].result == second[i] || (second[i] == 0 && tries[1].calls()[i].result > -40)));
    }
  };
  try_calls({0, 0, 0}, {0, 0, 0});  // suspended
  for (int thread : {pid, tid}) REQUIRE(proc::set_options(thread, PTRACE_O_EXITKILL));
  try_calls({-41, -42, 0}, {-41, 0, -43});
}

TEST_CASE(
    "seccomp: a target whose filter would kill it for the calls that ckpt borrows survives them, and keeps its "
    "filter") {
  if (!may_read_filters()) return;
  pid_t target = ::fork();
  if (target == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pause, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    sock_fprog all{4, program};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &all);
    for (;;) ::pause();
  }
  for (int i = 0; i < 5000 && proc::read_small(target, "syscall").value_or("").rfind("34 ", 0) != 0; ++i)
    ::usleep(1000);
  {
    auto frozen = proc::FrozenProcess::freeze(target, 1'000'000, Cancel());
    REQUIRE(frozen);
    auto maps = proc::read_maps(target, false);
    REQUIRE(maps);
    auto gadgets = proc::find_gadgets(target, *maps);
    REQUIRE(gadgets);
    auto area = proc::ParasiteArea::map(target, target, *gadgets);
    REQUIRE_MESSAGE(area, area.error().text());
    auto borrowed = proc::BorrowedThread::begin(*area, target);
    REQUIRE(borrowed);
    auto asked = borrowed->call(SYS_getpid);
    REQUIRE(asked);
    CHECK(*asked == target);
    auto child = borrowed->fork_frozen();
    REQUIRE_MESSAGE(child, child.error().text());
    ::kill(*child, SIGKILL);
    ::waitpid(*child, nullptr, __WALL);
    asked = borrowed->call(SYS_getpid);
    REQUIRE(asked);
    CHECK(*asked == target);
    REQUIRE(borrowed->finish());
    REQUIRE(area->unmap());
  }
  ::usleep(20000);
  CHECK(::waitpid(target, nullptr, WNOHANG) == 0);
  ::kill(target, SIGUSR1);  // its default ends it; a handler would have to return by a call that is not allowed
  int status = 0;
  ::waitpid(target, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGUSR1);
}

TEST_CASE("seccomp: strict mode comes back; a filter that asks another process is refused; nonsense is refused") {
  if (!may_read_filters()) return;
  auto area = restore::RestorerArea::create({});
  REQUIRE(area);
  store::Seccomp strict;
  strict.threads = {{1, true, {}}};
  auto child = restore::Child::create(free_pid(), *area);
  REQUIRE(child);
  REQUIRE(proc::set_options(child->pid(), PTRACE_O_EXITKILL | proc::kSuspendSeccomp));
  std::vector<restore::SyscallBatch> own(1);
  restore::install_own_filters(strict, *area, own);
  REQUIRE(child->run(own[0]));
  auto again = capture::describe_seccomp(child->pid(), {child->pid()});
  REQUIRE(again);
  CHECK(*again == strict);

  store::Seccomp asking;
  sock_filter program[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)};
  auto* bytes = reinterpret_cast<const uint8_t*>(program);
  asking.filters = {{false, {bytes, bytes + sizeof program}}};
  asking.threads = {{2, true, {0}}};
  auto other = restore::Child::create(free_pid(), *area);
  REQUIRE(other);
  REQUIRE(proc::set_options(other->pid(), PTRACE_O_EXITKILL | proc::kSuspendSeccomp));
  restore::SyscallBatch install;
  restore::install_common_filters(asking, *area, install);
  REQUIRE(other->run(install));
  auto refused = capture::describe_seccomp(other->pid(), {other->pid()});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kUnsupported);

  CHECK_FALSE(restore::check_seccomp(asking, 2));
  asking.threads[0].chain = {1};
  CHECK_FALSE(restore::check_seccomp(asking, 1));
  CHECK(restore::check_seccomp(store::Seccomp{}, 5));
}
