#include "lib/migrate/watchdog.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/fd_message.h"
#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/proc/background.h"
#include "lib/proc/procfs.h"

namespace ckpt::migrate {

namespace {

// Requests; each but the last is answered with a byte.
constexpr char kProcess = 'p', kStoppedProcess = 'q', kStop = 's', kAsk = 'a', kDismiss = 'd';
constexpr char kDone = '.', kFailed = '!';

struct Kept {
  UniqueFd pidfd;
  bool was_stopped = false;
};

/// False: one that is still there did not get it.
bool signal_all(const std::vector<Kept>& kept, int signal, bool also_stopped) {
  bool out = true;
  for (const Kept& process : kept) {
    if (process.was_stopped && !also_stopped) continue;
    if (::syscall(SYS_pidfd_send_signal, process.pidfd.get(), signal, nullptr, 0) != 0 && errno != ESRCH) out = false;
  }
  return out;
}

Verdict ask_for(const Remote& remote, const std::string& id, uint64_t patience_us) {
  constexpr useconds_t kPauseUs = 300'000;
  for (Stopwatch watch;;) {
    const Verdict verdict = ask_once(remote, id);
    const bool decided = verdict != Verdict::kUnknown && verdict != Verdict::kPartly;
    if (decided || watch.elapsed_us() > patience_us) return verdict;
    ::usleep(kPauseUs);
  }
}

/// Its maker has ended without a word.
void resolve(const Remote& remote, const std::string& id, const std::vector<Kept>& kept) {
  constexpr uint64_t kTimes = 4;
  const Verdict verdict = ask_for(remote, id, kTimes * remote.silence_us);
  if (verdict == Verdict::kRuns) signal_all(kept, SIGKILL, true);
  if (verdict == Verdict::kNot) signal_all(kept, SIGCONT, false);
}

[[noreturn]] void serve(int channel, const Remote& remote, const std::string& id) {
  std::vector<Kept> kept;
  bool holds = false;
  for (;;) {
    std::byte word{};
    std::vector<UniqueFd> fds;
    const ssize_t got = receive_with_fds(channel, {&word, 1}, fds);
    if (got <= 0) break;
    char answer = kDone;
    switch (static_cast<char>(word)) {
      case kProcess:
      case kStoppedProcess:
        if (fds.size() == 1) kept.push_back({std::move(fds[0]), static_cast<char>(word) == kStoppedProcess});
        else answer = kFailed;
        break;
      case kStop:
        holds = true;
        if (!signal_all(kept, SIGSTOP, false)) answer = kFailed;
        break;
      case kAsk: answer = static_cast<char>(ask_for(remote, id, remote.silence_us)); break;
      case kDismiss: ::_exit(0);
      default: answer = kFailed;
    }
    (void)!::send(channel, &answer, 1, MSG_NOSIGNAL);
  }
  if (holds) resolve(remote, id, kept);
  ::_exit(0);
}

[[noreturn]] void live(int channel, const Remote& remote, const std::string& id) {
  ::signal(SIGCHLD, SIG_DFL);
  serve(proc::become_background("ckpt-watchdog", channel), remote, id);
}

}  // namespace

Result<Watchdog> Watchdog::start(const Remote& remote, const std::string& id) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return sys_error("", "cannot make a pair of sockets");
  UniqueFd theirs(ends[0]), ours(ends[1]);
  const pid_t middle = ::fork();
  if (middle < 0) return fork_error(errno, "", "cannot make a process");
  if (middle == 0) {
    const pid_t watchdog = ::fork();
    if (watchdog != 0) ::_exit(watchdog < 0 ? 1 : 0);
    live(theirs.get(), remote, id);
  }
  int status = 0;
  while (::waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return fail(Code::kNoRoom, "", "cannot make a process");
  return Watchdog(std::move(ours));
}

Result<char> Watchdog::call(char word, int pidfd) const {
  const auto byte = static_cast<std::byte>(word);
  char answer = kFailed;
  const std::span<const int> fds = pidfd < 0 ? std::span<const int>() : std::span<const int>(&pidfd, 1);
  if (send_with_fds(channel_.get(), {&byte, 1}, fds) != 1) return fail(Code::kIo, "ckpt-watchdog", "has ended");
  ssize_t got;
  while ((got = ::recv(channel_.get(), &answer, 1, 0)) < 0 && errno == EINTR) {
  }
  if (got != 1) return fail(Code::kIo, "ckpt-watchdog", "has ended");
  return answer;
}

/// Each thread gets one of its own, too: of one for them all the others would hear a moment later.
Result<void> Watchdog::stop(const engine::HandOver& what) {
  for (const engine::HandOver::Process& process : what.processes) {
    CKPT_TRY_ASSIGN(const char kept, call(process.stopped ? kStoppedProcess : kProcess, process.pidfd));
    if (kept != kDone) return fail(Code::kIo, proc::describe_pid(process.pid), "cannot be kept stopped");
  }
  CKPT_TRY_ASSIGN(const char stopped, call(kStop));
  if (stopped != kDone) return fail(Code::kPermission, "the processes", "cannot be kept stopped");
  for (const engine::HandOver::Process& process : what.processes) {
    CKPT_TRY_ASSIGN(const std::vector<int> threads, proc::read_threads(process.pid));
    for (int tid : process.stopped ? std::vector<int>() : threads) ::syscall(SYS_tgkill, process.pid, tid, SIGSTOP);
  }
  return {};
}

Verdict Watchdog::ask() {
  auto answer = call(kAsk);
  return answer && *answer != kFailed ? static_cast<Verdict>(*answer) : Verdict::kUnknown;
}

void Watchdog::dismiss() {
  (void)!::send(channel_.get(), &kDismiss, 1, MSG_NOSIGNAL);
  channel_.reset();
}

}  // namespace ckpt::migrate
