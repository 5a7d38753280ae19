#include "lib/memory/lazy/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "lib/base/threads.h"
#include "lib/proc/fork_far_away.h"
#include "lib/proc/missing_pages.h"
#include "lib/proc/userfault.h"

namespace ckpt::restore {

namespace {

constexpr uint64_t kLowest = 0x10000, kHighest = 0x7ffffffff000, kPage = 0x1000;
constexpr size_t kMostDescriptors = 1024;

struct Descriptors {
  std::array<pollfd, kMostDescriptors> list;
  size_t count = 0;
};

struct Entry {  // struct linux_dirent64
  uint64_t inode;
  int64_t offset;
  unsigned short size;
  unsigned char type;
  char name[1];
};

/// Every userfaultfd of the table, those included that the kernel has just put there.
void find_userfaults(Descriptors& out) {
  out.count = 0;
  const int folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(8) char raw[4096];
  for (;;) {
    const long got = ::syscall(SYS_getdents64, folder, raw, sizeof raw);
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const Entry*>(raw + at);
      at += entry->size;
      char text[64] = {};
      constexpr char kUserfault[] = "anon_inode:[userfaultfd]";
      const bool is_one =
          ::readlinkat(folder, entry->name, text, sizeof text - 1) > 0 && std::strcmp(text, kUserfault) == 0;
      if (is_one && out.count < out.list.size()) out.list[out.count++] = {std::atoi(entry->name), POLLIN, 0};
    }
  }
  ::close(folder);
}

/// Its memory is gone: no page of it can be asked for.
bool has_ended(int userfault) {
  return proc::zero_missing(userfault, kLowest, kPage).obstacle == proc::Obstacle::kEnded;
}

void refuse(int userfault, const proc::FaultMessage& message, bool poison) {
  if (!poison) {
    ::kill(message.thread, SIGKILL);
    return;
  }
  for (;;) {
    const proc::Placed placed = proc::poison_missing(userfault, message.start, kPage);
    if (placed.obstacle != proc::Obstacle::kChanging) break;
    std::array<proc::FaultMessage, 32> dropped;  // a fork's child is found in the table, a fault asked for again
    proc::read_faults(userfault, dropped);
    proc::wake(userfault, kLowest, kHighest - kLowest);
    ::usleep(1000);
  }
  proc::wake(userfault, message.start, kPage);
}

void answer(int userfault, bool poison) {
  std::array<proc::FaultMessage, 32> messages;
  const size_t count = proc::read_faults(userfault, messages);
  for (size_t i = 0; i < count; ++i) {
    if (messages[i].kind == proc::FaultMessage::Kind::kFault) refuse(userfault, messages[i], poison);
  }
}

/// The daemon is gone: whoever needs a page gets none. Until nobody is left who could.
void refuse_all(bool poison) {
  static Descriptors open;
  find_userfaults(open);
  // What the daemon had read and not answered is asked for again.
  for (size_t i = 0; i < open.count; ++i) proc::wake(open.list[i].fd, kLowest, kHighest - kLowest);
  while (open.count > 0) {
    constexpr int kLookAgainMs = 200;
    ::poll(open.list.data(), open.count, kLookAgainMs);
    for (size_t i = 0; i < open.count; ++i) {
      if (has_ended(open.list[i].fd)) ::close(open.list[i].fd);
      else answer(open.list[i].fd, poison);
    }
    find_userfaults(open);
  }
}

[[noreturn]] void guard(int daemon, const LazyPagesState& state, const LazyPagesLog& log) {
  ::prctl(PR_SET_NAME, "ckpt-guard", 0, 0, 0);
  ::setpgid(0, 0);  // what kills the daemon's group does not kill it
  pollfd end{daemon, POLLIN, 0};
  while (::poll(&end, 1, -1) < 0 && errno == EINTR) {
  }
  if (state.finished == 0) {
    log.write(LazyPagesLog::Level::kProblem,
              state.poison != 0
                  ? "the lazy-pages daemon was killed: the processes get SIGBUS at pages that were not yet in"
                  : "the lazy-pages daemon was killed: a process that needs a page which was not yet in is killed");
    refuse_all(state.poison != 0);
  }
  ::_exit(0);
}

}  // namespace

Result<UniqueFd> start_guardian(const LazyPagesState& state, const LazyPagesLog& log) {
  CKPT_TRY_ASSIGN(UniqueFd self, proc::open_pidfd(::getpid()));
  const pid_t pid = proc::fork_far_away(CLONE_FILES, 0);
  if (pid < 0) return fork_error(errno, "", "cannot make the lazy-pages daemon's guardian");
  if (pid == 0) guard(self.get(), state, log);
  (void)self.release();  // it is the guardian's now, in the table of both
  return proc::open_pidfd(pid);
}

}  // namespace ckpt::restore
