// Threads and processes where their number may be limited (RLIMIT_NPROC, pids.max): what std::thread throws there ends
// a program whose other threads run, a borrowed target with it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "lib/base/result.h"

namespace ckpt {

/// Starts a thread. False: there is no room for one.
template <class Work>
[[nodiscard]] bool start_thread(std::thread& out, Work work) {
  try {
    out = std::thread(std::move(work));
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

/// Calls `work(i)`, which does not throw, for each i below `count`: in up to so many threads, this one among them, each
/// of which takes the next i; in fewer where there is no room for more.
template <class Work>
void in_threads(unsigned threads, size_t count, Work work) {
  std::atomic<size_t> next{0};
  auto some = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) {
    std::thread helper;
    if (!start_thread(helper, some)) break;
    helpers.push_back(std::move(helper));
  }
  some();
  for (std::thread& helper : helpers) helper.join();
}

/// `work` in a thread of its own, or, without room for one, in that which asks for the result (wait_for says deferred).
template <class Work>
auto in_background(Work work) -> std::future<decltype(work())> {
  try {
    return std::async(std::launch::async, work);
  } catch (const std::system_error&) {
    return std::async(std::launch::deferred, work);
  }
}

inline Error no_thread(std::string subject) {
  return Error(Code::kNoRoom, std::move(subject), "cannot make a thread: the limit on their number is reached");
}

/// After a fork or clone that failed: fork(2) says EAGAIN for a limit on the number of processes.
inline Error fork_error(int err, std::string subject, std::string message) {
  Error out = sys_error(err, std::move(subject), std::move(message));
  if (err == EAGAIN) out.code = Code::kNoRoom;
  return out;
}

}  // namespace ckpt
