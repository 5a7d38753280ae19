#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <thread>

#include "lib/proc/frozen_process.h"
#include "lib/proc/procfs.h"
#include "lib/proc/run_alone.h"
#include "tests/support/sanitized.h"
#include "tests/support/skip.h"

using namespace ckpt;
using namespace ckpt::proc;

namespace {

struct Shared {
  std::atomic<uint64_t> counter{0};
  std::atomic<int> server{0}, signals{0};
};
Shared* shared;

/// A filter under which getppid fails.
void refuse_getppid() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{4, code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(6);
}

/// A child whose first thread counts, and whose second waits in epoll_wait for a byte and sends it back; an 'n' makes a
/// new thread that counts, too; a 'p' comes back as 'P' where the second thread's filter is in force. It takes SIGUSR2.
class Target {
 public:
  Target() {
    shared = static_cast<Shared*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    new (shared) Shared;
    REQUIRE(::pipe(to_) == 0);
    REQUIRE(::pipe(from_) == 0);
    pid_ = ::fork();
    if (pid_ == 0) run();
    while (shared->counter == 0 || shared->server == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ~Target() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    for (int fd : {to_[0], to_[1], from_[0], from_[1]}) ::close(fd);
    ::munmap(shared, 4096);
  }
  int pid() const { return pid_; }
  int server() const { return shared->server; }
  /// Whether the second thread answers within `ms`.
  bool answers(char byte, int ms) {
    if (byte != 0 && ::write(to_[1], &byte, 1) != 1) return false;
    pollfd poll{from_[0], POLLIN, 0};
    return ::poll(&poll, 1, ms) == 1 && ::read(from_[0], &answer_, 1) == 1;
  }
  char last_answer() const { return answer_; }

 private:
  [[noreturn]] void run() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct sigaction action {};
    action.sa_handler = [](int) { ++shared->signals; };
    ::sigaction(SIGUSR1, &action, nullptr);
    ::sigaction(SIGUSR2, &action, nullptr);
    std::thread server([this] {
      sigset_t all;
      sigfillset(&all);
      sigdelset(&all, SIGUSR2);
      ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
      refuse_getppid();
      const int epoll = ::epoll_create1(0);
      epoll_event event{EPOLLIN, {}};
      ::epoll_ctl(epoll, EPOLL_CTL_ADD, to_[0], &event);
      shared->server = static_cast<int>(::syscall(SYS_gettid));
      for (char byte = 0;;) {
        const int seen = shared->signals;
        if (::epoll_wait(epoll, &event, 1, -1) != 1) {
          if (shared->signals == seen) ::_exit(9);  // a stop must not show
          continue;
        }
        if (::read(to_[0], &byte, 1) != 1) ::_exit(8);
        if (byte == 'p' && ::syscall(SYS_getppid) < 0) byte = 'P';
        if (byte == 'x') ::syscall(SYS_exit, 0);
        if (byte == 'n') std::thread([] { for (;;) ++shared->counter; }).detach();
        if (::write(from_[1], &byte, 1) != 1) ::_exit(7);
      }
    });
    for (;;) ++shared->counter;
  }
  int pid_ = 0, to_[2], from_[2];
  char answer_ = 0;
};

}  // namespace

TEST_CASE("run_alone: one thread works while the others stand still, and stands still again") {
  Target target;
  Cancel cancel;
  auto frozen = FrozenProcess::freeze(target.pid(), 5'000'000, cancel);
  REQUIRE(frozen);
  const uint64_t stood_at = shared->counter;
  ::kill(target.pid(), SIGUSR1);
  for (char byte : {'a', 'b'}) {
    auto done = run_alone(target.pid(), target.server(), [&]() -> Result<void> {
      if (!target.answers(byte, 5'000)) return fail(Code::kBusy, "", "no answer");
      return {};
    });
    CHECK_MESSAGE(done, (done ? "" : done.error().text()));
    CHECK(shared->counter == stood_at);
    CHECK(shared->signals == 0);
  }
  CHECK_FALSE(target.answers('c', 50));
  auto failed = run_alone(target.pid(), target.server(),
                          [&]() -> Result<void> { return fail(Code::kNoRoom, "", "the work's own failure"); });
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == Code::kNoRoom);
  frozen->release();
  CHECK(target.answers(0, 5'000));
  CHECK(target.answers('d', 5'000));
  for (int i = 0; i < 5000 && (shared->counter == stood_at || shared->signals == 0); ++i) ::usleep(1000);
  CHECK(shared->signals == 1);
  CHECK(shared->counter > stood_at);
  CHECK(::waitpid(target.pid(), nullptr, WNOHANG) == 0);
}

TEST_CASE("run_alone: the thread's filters are in force while it runs, and no signal reaches it until it is let go") {
  Target target;
  Cancel cancel;
  auto frozen = FrozenProcess::freeze(target.pid(), 5'000'000, cancel);
  REQUIRE(frozen);
  for (int i = 0; i < 2; ++i) {
    auto done = run_alone(target.pid(), target.server(), [&]() -> Result<void> {
      ::syscall(SYS_tgkill, target.pid(), target.server(), SIGUSR2);
      return target.answers('p', 5'000) ? Result<void>() : fail(Code::kBusy, "", "no answer");
    });
    CHECK_MESSAGE(done, (done ? "" : done.error().text()));
    CHECK(target.last_answer() == 'P');
    CHECK(shared->signals == 0);
  }
  frozen->release();
  CHECK(target.answers('a', 5'000));
  for (int i = 0; i < 5000 && shared->signals == 0; ++i) ::usleep(1000);
  CHECK(shared->signals == 1);  // both were one by then
  CHECK(::waitpid(target.pid(), nullptr, WNOHANG) == 0);
}

TEST_CASE("run_alone: threads that it brought forth are stopped by stop_new_threads") {
  if (ckpt::test::kThreadSanitized)
    return ckpt::test::skip("the thread sanitizer has threads and addresses of its own");
  Target target;
  Cancel cancel;
  auto frozen = FrozenProcess::freeze(target.pid(), 5'000'000, cancel);
  REQUIRE(frozen);
  auto done = run_alone(target.pid(), target.server(), [&]() -> Result<void> {
    if (!target.answers('n', 5'000)) return fail(Code::kBusy, "", "no answer");
    return {};
  });
  CHECK(done);
  REQUIRE(frozen->stop_new_threads(5'000'000));
  CHECK(frozen->threads().size() == 3);
  CHECK(frozen->threads()[0] == target.pid());
  const uint64_t stood_at = shared->counter;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(shared->counter == stood_at);
}

TEST_CASE("run_alone: a thread, or a process, that ends meanwhile is a result") {
  if (ckpt::test::kThreadSanitized)
    return ckpt::test::skip("the thread sanitizer has threads and addresses of its own");
  Cancel cancel;
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    Target target;
    auto frozen = FrozenProcess::freeze(target.pid(), 5'000'000, cancel);
    REQUIRE(frozen);
    auto done = run_alone(target.pid(), target.server(), [&]() -> Result<void> {
      if (whole) ::kill(target.pid(), SIGKILL);
      else (void)target.answers('x', 50);
      return {};
    });
    REQUIRE_FALSE(done);
    CHECK(done.error().code == Code::kNotFound);
  }
}
