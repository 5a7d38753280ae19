#include <doctest/doctest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <ctime>
#include <thread>

#include "lib/base/clock.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/frozen_process.h"
#include "lib/proc/procfs.h"
#include "lib/proc/remote_memory.h"
#include "tests/support/sanitized.h"
#include "tests/support/skip.h"

using namespace ckpt;
using namespace ckpt::proc;

namespace {

struct Shared {
  std::atomic<uint64_t> counter{0};
  std::atomic<int> sleep_result{-1};
  std::atomic<uint64_t> slept_us{0};
};

/// A child with a counting thread and one in nanosleep; killed and reaped at the end.
class Target {
 public:
  Target() {
    shared_ = static_cast<Shared*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    new (shared_) Shared;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::thread counter([s = shared_] { for (;;) s->counter.fetch_add(1); });
      uint64_t start = monotonic_us();
      timespec ts{0, 400'000'000};
      shared_->sleep_result = ::nanosleep(&ts, nullptr);
      shared_->slept_us = monotonic_us() - start;
      counter.join();
    }
    while (shared_->counter == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ~Target() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::munmap(shared_, 4096);
  }
  int pid() const { return pid_; }
  Shared& shared() { return *shared_; }

 private:
  Shared* shared_;
  int pid_;
};

std::string maps_of(int pid) {
  std::string out;
  auto maps = read_maps(pid, false);
  for (const Vma& vma : *maps) out += std::to_string(vma.start) + "-" + std::to_string(vma.end) + " " + vma.name + "\n";
  return out;
}

}  // namespace

TEST_CASE("gadgets: instructions that lie across the borders at which code is read are found, the first ones of each") {
  constexpr size_t kPiece = 64 << 10, kSize = 4 * kPiece;
  auto* code = static_cast<char*>(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(code != MAP_FAILED);
  const char call[] = {0x0f, 0x05}, returning[] = {0x0f, 0x05, static_cast<char>(0xc3)};
  const char sigreturn[] = {0x48, static_cast<char>(0xc7), static_cast<char>(0xc0), 0x0f, 0, 0, 0, 0x0f, 0x05};
  char* const calls = code + kPiece - 1;
  char* const returns = code + 2 * kPiece - 2;
  char* const sigreturns = code + 3 * kPiece - 8;
  std::memcpy(calls, call, sizeof call);
  std::memcpy(returns, returning, sizeof returning);
  std::memcpy(sigreturns, sigreturn, sizeof sigreturn);
  std::memcpy(code + 3 * kPiece + 100, returning, sizeof returning);
  Vma vma;
  vma.start = reinterpret_cast<uint64_t>(code), vma.end = vma.start + kSize, vma.prot = PROT_READ | PROT_EXEC;
  auto gadgets = find_gadgets(::getpid(), {vma});
  REQUIRE(gadgets);
  CHECK(raw(gadgets->syscall) == reinterpret_cast<uint64_t>(calls));
  CHECK(raw(gadgets->returning) == reinterpret_cast<uint64_t>(returns));
  CHECK(raw(gadgets->sigreturn) == reinterpret_cast<uint64_t>(sigreturns));
  std::memset(sigreturns, 0, sizeof sigreturn);
  gadgets = find_gadgets(::getpid(), {vma});
  REQUIRE(gadgets);
  CHECK(raw(gadgets->sigreturn) == 0);
  ::munmap(code, kSize);
}

TEST_CASE("freeze: all threads stand still, and go on after the release") {
  if (ckpt::test::kThreadSanitized)
    return ckpt::test::skip("the thread sanitizer has threads and addresses of its own");
  Target target;
  Cancel cancel;
  {
    auto frozen = FrozenProcess::freeze(target.pid(), 1'000'000, cancel);
    REQUIRE(frozen);
    CHECK(frozen->threads().size() == 2);
    CHECK(frozen->threads()[0] == target.pid());
    uint64_t before = target.shared().counter;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(target.shared().counter == before);
    CHECK(FrozenProcess::freeze(target.pid(), 1000, cancel).error().code == Code::kBusy);
  }
  uint64_t before = target.shared().counter;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(target.shared().counter > before);
}

TEST_CASE("borrow: a call is made in the target, its registers and mappings are as before, a sleep goes on") {
  Target target;
  Cancel cancel;
  std::string before = maps_of(target.pid());
  for (int round = 0; round < 3; ++round) {
    auto frozen = FrozenProcess::freeze(target.pid(), 1'000'000, cancel);
    REQUIRE(frozen);
    auto maps = read_maps(target.pid(), false);
    auto gadgets = find_gadgets(target.pid(), *maps);
    REQUIRE(gadgets);
    CHECK(raw(gadgets->returning) != 0);
    CHECK(raw(gadgets->sigreturn) != 0);
    auto area = ParasiteArea::map(target.pid(), target.pid(), *gadgets);
    REQUIRE(area);
    for (int tid : frozen->threads()) {
      auto regs_before = get_registers(tid);
      auto thread = BorrowedThread::begin(*area, tid);
      REQUIRE(thread);
      CHECK(*thread->call(SYS_gettid) == tid);
      CHECK(*thread->call(SYS_close, {~0ull}) == -EBADF);
      CHECK(thread->finish());
      auto regs_after = get_registers(tid);
      CHECK(std::memcmp(&*regs_before, &*regs_after, sizeof *regs_before) == 0);
    }
    CHECK(area->unmap());
    frozen->release();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  CHECK(maps_of(target.pid()) == before);
  while (target.shared().sleep_result == -1) std::this_thread::yield();
  CHECK(target.shared().sleep_result == 0);
  CHECK(target.shared().slept_us >= 400'000);
  CHECK(target.shared().slept_us < 600'000);
}

TEST_CASE("borrow: a thread that is abandoned in the middle heals itself") {
  Target target;
  for (int round = 0; round < 4; ++round) {
    // The tracer is a process of its own that dies with the thread borrowed.
    int tracer = ::fork();
    if (tracer == 0) {
      Cancel cancel;
      auto frozen = FrozenProcess::freeze(target.pid(), 1'000'000, cancel);
      auto maps = read_maps(target.pid(), false);
      auto area = ParasiteArea::map(target.pid(), target.pid(), *find_gadgets(target.pid(), *maps));
      int tid = frozen->threads().back();
      auto thread = BorrowedThread::begin(*area, tid);
      if (round > 0) (void)thread->call(SYS_getpid);
      if (round > 1) (void)thread->fork_frozen();
      ::kill(::getpid(), SIGKILL);
    }
    ::waitpid(tracer, nullptr, 0);
    uint64_t before = target.shared().counter;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(target.shared().counter > before);
    auto status = read_status(target.pid(), target.pid());
    REQUIRE(status);
    CHECK(status->tracer == 0);
    CHECK(status->blocked == 0);
    auto stat = read_stat(target.pid());
    CHECK(stat->state != 't');
  }
}

TEST_CASE("borrow: a frozen fork holds the memory of its instant and leaves no zombie once it is waited for") {
  Target target;
  Cancel cancel;
  auto frozen = FrozenProcess::freeze(target.pid(), 1'000'000, cancel);
  REQUIRE(frozen);
  auto maps = read_maps(target.pid(), false);
  auto area = ParasiteArea::map(target.pid(), target.pid(), *find_gadgets(target.pid(), *maps));
  auto thread = BorrowedThread::begin(*area, target.pid());
  REQUIRE(thread);
  auto child = thread->fork_frozen();
  REQUIRE(child);
  std::byte probe[16];
  CHECK(read_memory(*child, area->start(), probe));
  CHECK(probe[0] == std::byte{0x0f});
  ::kill(*child, SIGKILL);
  CHECK(wait_stop(*child)->kind == StopKind::kEnded);
  constexpr uint64_t kWall = 0x40000000;
  CHECK(*thread->call(SYS_wait4, {static_cast<uint64_t>(*child), 0, kWall | 1, 0}) == *child);
  CHECK(thread->finish());
  CHECK(area->unmap());
  CHECK(read_children(target.pid())->empty());
}
