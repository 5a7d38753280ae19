#pragma once

#include <sys/wait.h>
#include <unistd.h>

/// The number of a process that has just ended: the kernel gives it out again only after all others.
inline int free_pid() {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  return pid;
}
