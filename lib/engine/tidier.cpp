#include "lib/engine/tidier.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <utility>

#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/staged_dir.h"
#include "lib/base/threads.h"
#include "lib/memory/leftovers.h"
#include "lib/memory/tracking_daemon.h"
#include "lib/proc/fork_far_away.h"
#include "lib/proc/own_helpers.h"
#include "lib/proc/procfs.h"
#include "lib/proc/usage.h"
#include "lib/state/namespaces/entered.h"

namespace ckpt::engine {

namespace {

namespace fs = std::filesystem;

/// A snapshot that the kernel has not yet ended.
bool is_dying_snapshot(const proc::Stat& stat) {
  return !stat.is_zombie() && stat.exit_signal == 0 && stat.minor_faults == 0;
}

/// Threads that were ready to run when ckpt had let go of them, and have not run since, on a busy machine for long: one
/// of them may have a call of ckpt's before it.
class NotRunYet {
 public:
  bool empty(int pid) {
    if (!std::exchange(begun_, true)) begin(pid);
    std::erase_if(threads_, [&](const auto& thread) {
      const auto now = proc::read_time_on_processor(pid, thread.first);
      return !now || *now != thread.second;
    });
    return threads_.empty();
  }

 private:
  void begin(int pid) {
    auto tids = proc::read_threads(pid);
    for (int tid : tids ? *tids : std::vector<int>()) {
      auto stat = proc::read_thread_stat(pid, tid);
      if (!stat || (stat->state != 'R' && stat->state != 't')) continue;  // 't': let go in a moment
      if (const auto ran = proc::read_time_on_processor(pid, tid)) threads_.emplace(tid, *ran);
    }
  }

  bool begun_ = false;
  std::map<int, uint64_t> threads_;  ///< tid -> nanoseconds that it had run by then
};

/// True: nothing is left in it, and nothing about to be.
bool tidy_process(int pid, NotRunYet& threads) {
  auto maps = proc::read_maps(pid, false);
  auto stat = proc::read_stat(pid);
  if (!maps || !stat || stat->is_zombie()) return true;
  // The kernel closes a dead tracer's files, which is how we know of its end, before it lets go of the tracees; a call
  // that was begun in one goes on then.
  auto status = proc::read_status(pid, pid);
  if (status && status->tracer != 0) return false;
  if (!threads.empty(pid)) return false;
  capture::Leftovers left = capture::find_leftovers(pid, *maps);
  if (!left.empty()) {
    // Another ckpt that captures it already looks for them itself.
    auto lock = capture::CaptureLock::take({pid, stat->start_time});
    if (lock) (void)capture::clear_leftovers(pid, left);
    return false;  // once more
  }
  auto children = proc::read_children(pid);
  return !children || std::none_of(children->begin(), children->end(), [](int child) {
    auto of_child = proc::read_stat(child);
    return of_child && is_dying_snapshot(*of_child);
  });
}

void tidy(int target, const fs::path& staging) {
  constexpr int kTries = 250,
                kCleanLooks = 15;  // a thread that is on its way out of a call may have to wait for a processor
  constexpr useconds_t kPause = 20'000;
  int clean_looks = 0;
  std::map<int, NotRunYet> threads;
  bool removed = false;
  for (int i = 0; i < kTries && !(clean_looks >= kCleanLooks && removed); ++i) {
    removed = removed || remove_abandoned_staging(staging);
    bool clean = true;
    auto tree = proc::read_tree(target);
    for (size_t at = 0; tree && at < tree->size(); ++at) {
      if (!(*tree)[at].zombie && !tidy_process((*tree)[at].pid, threads[(*tree)[at].pid])) clean = false;
    }
    clean_looks = clean ? clean_looks + 1 : 0;
    ::usleep(kPause);
  }
}

[[noreturn]] void live(int channel, int target, uint64_t started, const fs::path& staging) {
  ::setsid();
  for (int sig : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE}) ::signal(sig, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  // Nothing of ckpt's stays open here: no pipe that somebody waits to see closed, no lock.
  ::dup2(channel, 0);
  io::close_descriptors(1);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  while (null >= 0 && ::dup(null) < 2) {
  }
  if (::chdir("/") != 0) ::_exit(1);
  char byte = 0;
  ssize_t got;
  while ((got = ::read(0, &byte, 1)) < 0 && errno == EINTR) {
  }
  auto stat = proc::read_stat(target);
  const bool is_there = stat && stat->start_time == started;
  if (got == 0) tidy(is_there ? target : -1, staging);
  ::_exit(0);
}

}  // namespace

Result<Tidier> Tidier::spawn(int target, const fs::path& staging) {
  CKPT_TRY_ASSIGN(auto ends, make_pipe());
  auto& [theirs, ours] = ends;
  CKPT_TRY_ASSIGN(proc::Stat stat, proc::read_stat(target));
  if (state::stays_as_sibling()) {  // as a tracking daemon then
    const pid_t tidier = proc::fork_far_away(CLONE_PARENT, 0);
    if (tidier < 0) return fork_error(errno, "", "cannot make a process");
    if (tidier != 0) return Tidier(std::move(ours));
    ::prctl(PR_SET_NAME, proc::kTidierName, 0, 0, 0);
    ours.reset();
    live(theirs.get(), target, stat.start_time, staging);
  }
  // Twice, so that it is nobody's child here: what ends ckpt's children does not end it.
  pid_t middle = ::fork();
  if (middle < 0) return fork_error(errno, "", "cannot make a process");
  if (middle == 0) {
    ::prctl(PR_SET_NAME, proc::kTidierName, 0, 0,
            0);  // from its first moment on it is told from the processes of a tree whose init it is handed to
    pid_t tidier = ::fork();
    if (tidier != 0) ::_exit(tidier < 0 ? 1 : 0);
    ours.reset();
    live(theirs.get(), target, stat.start_time, staging);
  }
  int status = 0;
  while (::waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return fail(Code::kNoRoom, "", "cannot make a process");
  return Tidier(std::move(ours));
}

Tidier::~Tidier() {
  if (channel_) (void)!::write(channel_.get(), "", 1);
}

}  // namespace ckpt::engine
