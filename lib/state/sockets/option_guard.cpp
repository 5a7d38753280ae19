#include "lib/state/sockets/option_guard.h"

#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "lib/base/unique_fd.h"

namespace ckpt::capture {

Result<OptionGuard> OptionGuard::create(size_t capacity) {
  void* page = ::mmap(nullptr, capacity * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return sys_error("", "cannot share memory with a guard");
  auto* slots = static_cast<Slot*>(page);
  UniqueFd watched(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  clone_args args{};
  args.flags = CLONE_FILES;
  long pid = watched ? ::syscall(SYS_clone3, &args, sizeof args) : -1;
  if (pid == 0) watch(watched.get(), slots, capacity);
  if (pid < 0) {
    Error error = sys_error("", "cannot make a guard for the settings of sockets");
    ::munmap(page, capacity * sizeof(Slot));
    return error;
  }
  return OptionGuard(slots, capacity, static_cast<int>(pid), watched.release());
}

/// Plain system calls only: this runs in a copy of a process that has threads.
void OptionGuard::watch(int owner, const Slot* slots, size_t capacity) {
  ::setsid();  // what ends ckpt from the terminal must not end this
  pollfd poll{owner, POLLIN, 0};
  while (::poll(&poll, 1, -1) < 0 && errno == EINTR) {
  }
  for (size_t i = 0; i < capacity; ++i) {
    const Slot& slot = slots[i];
    if (std::atomic_ref(const_cast<int&>(slot.active)).load() != 0)
      (void)::setsockopt(slot.fd, slot.level, slot.option, &slot.before, sizeof slot.before);
  }
  for (;;) ::syscall(SYS_exit_group, 0);
}

OptionGuard::~OptionGuard() {
  if (slots_ == nullptr) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, __WALL) < 0 && errno == EINTR) {
  }
  ::munmap(slots_, capacity_ * sizeof(Slot));
  ::close(watched_);
}

size_t OptionGuard::remember(int fd, int level, int option, int before) {
  for (size_t i = 0; i < capacity_; ++i) {
    if (slots_[i].active != 0) continue;
    slots_[i] = {fd, level, option, before, 0};
    std::atomic_ref(slots_[i].active).store(1);
    return i;
  }
  CKPT_ASSERT(!"more settings are out than the guard was made for");
  return 0;
}

void OptionGuard::forget(size_t slot) { std::atomic_ref(slots_[slot].active).store(0); }

}  // namespace ckpt::capture
