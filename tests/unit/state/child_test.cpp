#include "lib/state/tree/child.h"

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

#include "lib/proc/host.h"
#include "lib/proc/procfs.h"
#include "tests/support/skip.h"
#include "tests/support/free_pid.h"

using namespace ckpt;
using namespace ckpt::restore;

namespace {

bool may_choose_pids() {
  constexpr int kSysAdmin = 21, kCheckpointRestore = 40;
  if (proc::has_capability(kSysAdmin) || proc::has_capability(kCheckpointRestore)) return true;
  ckpt::test::skip("choosing a pid needs CAP_CHECKPOINT_RESTORE");
  return false;
}

bool exists(int pid) { return ::kill(pid, 0) == 0; }

}  // namespace

TEST_CASE("restorer area: keeps clear of what the process maps, and says so when it is full") {
  auto first = RestorerArea::create({});
  REQUIRE(first);
  uint64_t place = first->address();
  constexpr uint64_t kSize = RestorerArea::kSize;
  auto second = RestorerArea::create({{place, place + 4096}, {place + kSize * 2, place + kSize * 3}});
  REQUIRE(second);
  uint64_t other = second->address();
  CHECK((other + RestorerArea::kSize <= place || other >= place + RestorerArea::kSize));
  CHECK((other + RestorerArea::kSize <= place + RestorerArea::kSize * 2 || other >= place + RestorerArea::kSize * 3));
  CHECK(second->allocate(RestorerArea::kSize) == nullptr);
  CHECK(second->overflowed());
}

TEST_CASE("child: a batch runs in order, gives results back, and stops at the first failure that counts") {
  if (!may_choose_pids()) return;
  int pid = free_pid();
  auto area = RestorerArea::create({});
  REQUIRE(area);
  auto child = Child::create(pid, *area);
  REQUIRE(child);
  SyscallBatch good;
  good.add("ask for the pid", SYS_getpid);
  good.try_add("close nothing", SYS_close, -1);
  good.add("ask for the parent", SYS_getppid);
  REQUIRE(child->run(good));
  CHECK(good.calls()[0].result == pid);
  CHECK(good.calls()[1].result == -EBADF);
  CHECK(good.calls()[2].result == ::getpid());

  SyscallBatch bad;
  bad.add("close nothing", SYS_close, 12345);
  bad.add("never come here", SYS_getpid);
  auto result = child->run(bad);
  REQUIRE_FALSE(result);
  CHECK(result.error().sys_errno == EBADF);
  CHECK(result.error().message.find("close nothing") != std::string::npos);
  CHECK(bad.calls()[1].result == 0);
}

TEST_CASE("child: one whose threads could be made only in part goes away as a whole") {
  if (!may_choose_pids()) return;
  const int pid = free_pid(), first = free_pid(), second = free_pid();
  auto area = RestorerArea::create({});
  REQUIRE(area);
  auto child = Child::create(pid, *area);
  REQUIRE(child);
  SyscallBatch batch;
  child->add_thread(batch, first);
  child->add_thread(batch, second);
  child->add_thread(batch, ::getpid());  // taken
  auto made = child->run(batch);
  REQUIRE_FALSE(made);
  CHECK(made.error().sys_errno == EEXIST);
  ::alarm(20);  // it waited for ever for threads that nobody had noted
  { Child end = std::move(*child); }
  ::alarm(0);
  CHECK_FALSE(exists(pid));
}

TEST_CASE("child: threads get the ids asked for, and run batches at the same time") {
  if (!may_choose_pids()) return;
  int pid = free_pid(), tid = free_pid();
  REQUIRE(pid != tid);
  auto area = RestorerArea::create({});
  REQUIRE(area);
  auto child = Child::create(pid, *area);
  REQUIRE(child);
  SyscallBatch make;
  child->add_thread(make, tid);
  REQUIRE(child->run(make));
  REQUIRE(child->await_threads({tid}));
  SyscallBatch ask[2];
  ask[0].add("ask for the tid", SYS_gettid);
  ask[1].add("ask for the tid", SYS_gettid);
  REQUIRE(child->run_all({{pid, &ask[0]}, {tid, &ask[1]}}));
  CHECK(ask[0].calls()[0].result == pid);
  CHECK(ask[1].calls()[0].result == tid);
}

TEST_CASE("child: one call outside of the interpreter ends in a stop, even when it would sleep for an hour") {
  if (!may_choose_pids()) return;
  auto area = RestorerArea::create({});
  REQUIRE(area);
  auto child = Child::create(free_pid(), *area);
  REQUIRE(child);
  Call ask;
  ask.number = SYS_getpid;
  auto answer = child->call_once(child->pid(), area->syscall_instruction(), ask);
  REQUIRE(answer);
  CHECK(*answer == child->pid());
  Call sleep;
  sleep.number = SYS_nanosleep;
  sleep.args[0] = area->put(timespec{3600, 0});
  auto woken = child->call_once(child->pid(), area->syscall_instruction(), sleep);
  REQUIRE(woken);
  CHECK(*woken == -516);  // -ERESTART_RESTARTBLOCK: the kernel remembers what is left
}

TEST_CASE("child: what is dropped half-made leaves nothing behind") {
  if (!may_choose_pids()) return;
  int pid = free_pid();
  auto area = RestorerArea::create({});
  REQUIRE(area);
  {
    auto child = Child::create(pid, *area);
    REQUIRE(child);
    CHECK(exists(pid));
  }
  CHECK_FALSE(exists(pid));
  CHECK(::waitpid(pid, nullptr, WNOHANG) == -1);
}

TEST_CASE("child: a number that is taken is refused, and the holder named") {
  if (!may_choose_pids()) return;
  auto area = RestorerArea::create({});
  REQUIRE(area);
  auto child = Child::create(::getpid(), *area);
  REQUIRE_FALSE(child);
  CHECK(child.error().code == Code::kBusy);
  CHECK(child.error().message.find("unit_state") != std::string::npos);
}

TEST_CASE("child: one with a stand-in for a parent becomes an orphan without noticing") {
  if (!may_choose_pids()) return;
  int pid = free_pid();
  auto area = RestorerArea::create({});
  REQUIRE(area);
  {
    auto child = Child::create(pid, *area, Child::Parent::kStandIn);
    REQUIRE(child);
    SyscallBatch before, after;
    before.add("forget the parent", SYS_prctl, PR_SET_PDEATHSIG, 0, 0, 0, 0);
    before.add("ask for the parent", SYS_getppid);
    REQUIRE(child->run(before));
    child->leave_parent();
    after.add("ask for the parent", SYS_getppid);
    REQUIRE(child->run(after));
    CHECK(before.calls()[1].result != ::getpid());
    CHECK(before.calls()[1].result != after.calls()[0].result);
    CHECK(::waitpid(static_cast<pid_t>(before.calls()[1].result), nullptr, WNOHANG) == -1);
  }
  auto stat = proc::read_stat(pid);
  CHECK((!stat || stat->state == 'Z'));  // whoever adopts orphans here may be slow to reap it
}
