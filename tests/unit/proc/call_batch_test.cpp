#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include "lib/proc/call_batch.h"
#include "lib/proc/frozen_process.h"
#include "lib/proc/procfs.h"
#include "tests/support/sanitized.h"
#include "tests/support/skip.h"

using namespace ckpt;
using namespace ckpt::proc;

namespace {

constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

/// A child with 40 more threads, which count what they do; killed and reaped at the end.
class Crowd {
 public:
  static constexpr int kThreads = 40;

  Crowd() {
    counters_ = static_cast<std::atomic<uint64_t>*>(
        ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int i = 1; i <= kThreads; ++i) std::thread([this, i] { count(i); }).detach();
      count(0);
    }
    while (!all_counted()) ::usleep(1000);
  }
  ~Crowd() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::munmap(counters_, 4096);
  }
  int pid() const { return pid_; }

  /// Whether every thread gets on.
  bool goes_on() {
    for (int i = 0; i <= kThreads; ++i) counters_[i] = 0;
    for (int i = 0; i < 2000 && !all_counted(); ++i) ::usleep(1000);
    return all_counted();
  }

 private:
  void count(int i) {
    for (;;) {
      ++counters_[i];
      ::usleep(500);
    }
  }
  bool all_counted() const {
    for (int i = 0; i <= kThreads; ++i) {
      if (counters_[i] == 0) return false;
    }
    return true;
  }

  std::atomic<uint64_t>* counters_;
  int pid_;
};

struct Held {
  FrozenProcess frozen;
  ParasiteArea area;
  std::vector<std::vector<std::byte>> xstates;
  std::vector<BatchedThread> threads;
};

Held hold(int pid) {
  auto frozen = FrozenProcess::freeze(pid, 1'000'000, Cancel());
  REQUIRE(frozen);
  auto area = ParasiteArea::map(pid, pid, *find_gadgets(pid, *read_maps(pid, false)));
  REQUIRE(area);
  Held out{std::move(*frozen), std::move(*area), {}, {}};
  for (int tid : out.frozen.threads()) {
    out.threads.push_back({tid, 0, 0, *get_registers(tid), *get_signal_mask(tid), nullptr, {}});
    out.xstates.push_back(*get_xstate(tid));
  }
  for (size_t i = 0; i < out.threads.size(); ++i) out.threads[i].xstate = &out.xstates[i];
  return out;
}

void check_as_before(const Held& held) {
  for (const BatchedThread& thread : held.threads) {
    auto regs = get_registers(thread.tid);
    REQUIRE(regs);
    CHECK(std::memcmp(&*regs, &thread.regs, sizeof thread.regs) == 0);
    CHECK(*get_signal_mask(thread.tid) == thread.mask);
  }
}

}  // namespace

TEST_CASE("call batch: each of many threads makes all of its calls, and is as it was") {
  Crowd crowd;
  for (int signal : {SIGURG, 0}) {
    Held held = hold(crowd.pid());
    for (BatchedThread& thread : held.threads) {
      thread.calls.add("name itself", SYS_gettid);
      thread.calls.add("close nothing", SYS_close, {~0ull});
      thread.calls.add("read its mask", SYS_rt_sigprocmask, {SIG_BLOCK, 0, 0, 8}, 8, 4);
      thread.calls.add("read its alternate stack", SYS_sigaltstack, {0, 0}, sizeof(stack_t), 2);
      thread.calls.add("read its name", SYS_prctl, {PR_GET_NAME, 0}, 16, 2);
    }
    CallBatch batch(held.area, signal);
    REQUIRE(batch.run(held.threads));
    for (const BatchedThread& thread : held.threads) {
      CHECK(thread.calls.result(0) == thread.tid);
      CHECK(thread.calls.result(1) == -EBADF);
      CHECK(thread.calls.value(1).error().sys_errno == EBADF);
      // Nothing may be delivered meanwhile but what ends the batch, and the two that nobody can block.
      CHECK((*thread.calls.answer<uint64_t>(2) | bit(SIGKILL) | bit(SIGSTOP) | bit(SIGURG)) == ~0ull);
      CHECK(thread.calls.answer<stack_t>(3));
      CHECK(thread.calls.value(4));
    }
    check_as_before(held);
    CHECK(held.area.unmap());
  }
  CHECK(crowd.goes_on());
}

TEST_CASE("call batch: the signal that ends it may come from somebody else, too") {
  Crowd crowd;
  Held held = hold(crowd.pid());
  for (BatchedThread& thread : held.threads) {
    thread.calls.add("let others run", SYS_sched_yield);
    thread.calls.add("name itself", SYS_gettid);
    thread.calls.add("wait for a millisecond", SYS_poll, {0, 0, 1});
  }
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    while (!stop) ::kill(crowd.pid(), SIGURG), ::usleep(50);
  });
  for (int round = 0; round < 20; ++round) {
    CallBatch batch(held.area, SIGURG);
    auto done = batch.run(held.threads);
    CHECK_MESSAGE(done, done.error().text());
    for (const BatchedThread& thread : held.threads) CHECK(thread.calls.result(1) == thread.tid);
  }
  stop = true;
  sender.join();
  check_as_before(held);
  CHECK(held.area.unmap());
  held.frozen.release();
  CHECK(crowd.goes_on());
}

TEST_CASE("call batch: threads that are abandoned in the middle heal themselves") {
  if (ckpt::test::kThreadSanitized)
    return ckpt::test::skip("the thread sanitizer has threads and addresses of its own");
  Crowd crowd;
  for (int round = 0; round < 3; ++round) {
    int tracer = ::fork();
    if (tracer == 0) {
      Held held = hold(crowd.pid());
      for (BatchedThread& thread : held.threads) {
        thread.calls.add("wait for 100 ms: longer than the tracer lives", SYS_poll, {0, 0, 100});
        thread.calls.add("name itself", SYS_gettid);
      }
      std::thread([round] {
        ::usleep(static_cast<useconds_t>(20'000 + 40'000 * round));
        ::kill(::getpid(), SIGKILL);
      }).detach();
      CallBatch batch(held.area, SIGURG);
      (void)batch.run(held.threads);
      for (;;) ::pause();
    }
    ::waitpid(tracer, nullptr, 0);
    CHECK(crowd.goes_on());
    auto tids = read_threads(crowd.pid());
    REQUIRE(tids);
    for (int tid : *tids) {
      auto status = read_status(crowd.pid(), tid);
      REQUIRE_MESSAGE(status, status.error().text());
      CHECK(status->tracer == 0);
      CHECK(status->blocked == 0);
      CHECK((status->pending_private | status->pending_shared) == 0);
    }
  }
}

TEST_CASE("call batch: the signal is one that the process ignores and that nobody waits for") {
  CHECK(CallBatch::choose_signal(0, 0, 0) == SIGURG);
  CHECK(CallBatch::choose_signal(bit(SIGURG), 0, 0) == SIGWINCH);
  CHECK(CallBatch::choose_signal(0, 0, bit(SIGURG)) == SIGWINCH);
  CHECK(CallBatch::choose_signal(bit(SIGURG) | bit(SIGWINCH), bit(SIGPIPE), 0) == SIGPIPE);
  CHECK(CallBatch::choose_signal(bit(SIGURG) | bit(SIGWINCH), bit(SIGCHLD) | bit(SIGTSTP), 0) == 0);
  CHECK(CallBatch::choose_signal(~0ull, 0, 0) == 0);
}
