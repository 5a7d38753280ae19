// How a keeper (lib/capture/keeper.h) is told from other processes, and asked to leave its number to a process that needs it.
#pragma once

#include <sys/stat.h>

#include <csignal>
#include <string>

namespace ckpt::proc {

inline constexpr const char* kKeeperName = "ckpt-keeper";
/// It goes on under another number, in a session of that number, and the old one is free.
inline constexpr int kMoveSignal = SIGUSR1;

inline bool runs_this_program(int pid) {
  struct stat ours{}, theirs{};
  return ::stat("/proc/self/exe", &ours) == 0 && ::stat(("/proc/" + std::to_string(pid) + "/exe").c_str(), &theirs) == 0 &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

}  // namespace ckpt::proc
