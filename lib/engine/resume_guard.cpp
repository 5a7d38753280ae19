#include "lib/engine/resume_guard.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "lib/base/fd_message.h"

namespace ckpt::engine {

namespace {

struct Message {  // one datagram each (SOCK_SEQPACKET), with a descriptor
  int64_t pid = 0;
  uint64_t id = 0;
};
constexpr int kGuardFd = 3;

}  // namespace

/// In a session of its own: what happens to ckpt must not happen to it.
Result<void> ResumeGuard::start(const std::vector<std::string>& command, const std::vector<int>& pids) {
  if (command.empty() || pid_ != 0) return {};
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return sys_error("", "cannot make a socket for a guard");
  UniqueFd ours(pair[0]), theirs(pair[1]);
  std::vector<std::string> arguments = command;
  arguments.insert(arguments.end(), {"--after", std::to_string(::getpid()), "--offloaded", std::to_string(kGuardFd)});
  for (int pid : pids) arguments.insert(arguments.end(), {"-p", std::to_string(pid)});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, theirs.get(), kGuardFd);
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  const int failed = ::posix_spawn(&pid_, argv[0], &files, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed == 0) {
    socket_ = std::move(ours);
    return {};
  }
  pid_ = 0;
  return sys_error(failed, argv[0], "cannot start the process that would bring back the GPU state");
}

Result<void> ResumeGuard::hold(int pid, uint64_t id, int fd) {
  if (pid_ == 0) return {};
  const Message message{pid, id};
  if (send_with_fds(socket_.get(), std::as_bytes(std::span(&message, 1)), std::span(&fd, 1)) < 0)
    return sys_error("", "the guard of the GPU memory has ended");
  return {};
}

void ResumeGuard::end() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  socket_.reset();
}

Result<bool> receive_offloaded(int socket, std::vector<OffloadedMemory>& out) {
  Message message;
  std::vector<UniqueFd> fds;
  const ssize_t got = receive_with_fds(socket, std::as_writable_bytes(std::span(&message, 1)), fds);
  if (got == 0 || (got < 0 && errno == ECONNRESET)) return false;
  if (got < 0) return sys_error("", "cannot read what ckpt has offloaded");
  if (got != sizeof message || fds.size() != 1)
    return fail(Code::kBug, "", "what ckpt has offloaded came without its descriptor");
  out.push_back({static_cast<int>(message.pid), message.id, std::move(fds.front())});
  return true;
}

}  // namespace ckpt::engine
