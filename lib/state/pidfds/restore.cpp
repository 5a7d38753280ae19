#include "lib/state/pidfds/restore.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

Result<UniqueFd> make_dead_pidfd(int flags) {
  pid_t child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) ::_exit(0);
  if (child < 0) return sys_error("pidfd", "cannot make a process for it");
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, child, flags & (O_NONBLOCK | O_EXCL))));
  int error = errno;
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!fd) return sys_error(error, "pidfd", "cannot be made");
  return fd;
}

void open_pidfds(const std::vector<PidfdPlace>& places, SyscallBatch& batch) {
  for (const PidfdPlace& place : places)
    batch.add("open a pidfd", SYS_pidfd_open, place.pid, place.flags & (O_NONBLOCK | O_EXCL));
}

void place_pidfds(const std::vector<PidfdPlace>& places, const SyscallBatch& opened, size_t first, int spare,
                  SyscallBatch& batch) {
  for (size_t i = 0; i < places.size(); ++i) {
    int64_t number = opened.calls()[first + i].result;
    batch.add("put a pidfd aside", SYS_dup3, number, spare + static_cast<int>(i), O_CLOEXEC);
    batch.add("close a pidfd", SYS_close, number);
  }
  for (size_t i = 0; i < places.size(); ++i) {
    for (const auto& [fd, close_on_exec] : places[i].fds)
      batch.add("place a pidfd", SYS_dup3, spare + static_cast<int>(i), fd, close_on_exec ? O_CLOEXEC : 0);
    batch.add("close a pidfd", SYS_close, spare + static_cast<int>(i));
  }
}

Result<void> open_pidfds(const store::TreeImage& tree, int process, int spare, Child& child) {
  std::vector<PidfdPlace> places;
  for (const store::Descriptor& descriptor : tree.descriptors) {
    if (descriptor.kind != store::DescriptorKind::kPidfd || number_in(descriptor, process) < 0) continue;
    PidfdPlace place;
    place.pid = tree.process_handles[static_cast<size_t>(descriptor.object)].pid;
    place.flags = descriptor.flags;
    for (const auto& slot : descriptor.fds) place.fds.emplace_back(slot.fd, slot.close_on_exec);
    if (place.pid >= 0) places.push_back(std::move(place));
  }
  if (places.empty()) return {};
  SyscallBatch open, put;
  open_pidfds(places, open);
  CKPT_TRY(child.run(open));
  place_pidfds(places, open, 0, spare, put);
  return child.run(put);
}

}  // namespace ckpt::restore
