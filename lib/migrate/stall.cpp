#include "lib/migrate/stall.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

#include "lib/base/clock.h"
#include "lib/proc/procfs.h"
#include "lib/proc/usage.h"

namespace ckpt::migrate {

namespace {

/// What /proc/PID/io counts, calls and bytes together: the sum is compared, and means nothing else. Nothing: it is not
/// for our eyes (a process that entered a namespace, to one without privileges).
std::optional<uint64_t> read_io(pid_t pid) {
  auto text = proc::read_small(pid, "io");
  if (!text) return std::nullopt;
  uint64_t out = 0;
  for (size_t at = 0; (at = text->find(": ", at)) != std::string::npos; at += 2)
    out += std::strtoull(text->c_str() + at + 2, nullptr, 10);
  return out;
}

std::vector<pid_t> who_lets_go(pid_t root, const std::vector<pid_t>& traced) {
  std::vector<pid_t> out = {root};
  for (const pid_t pid : traced) {
    auto status = proc::read_status(pid, pid);
    if (status && status->tracer > 1) out.push_back(status->tracer);
  }
  return out;
}

}  // namespace

StallWatch::StallWatch(pid_t root, uint64_t limit_us)
    : root_(root), limit_us_(limit_us), since_us_(monotonic_us()), last_(look()) {}

StallWatch::Work StallWatch::look() const {
  Work out;
  const auto tree = proc::read_tree(root_);
  if (!tree) return out;
  for (const proc::TreeEntry& entry : *tree) {
    const std::optional<uint64_t> io = read_io(entry.pid);
    out.hidden = out.hidden || (!io && !proc::has_ended(entry.pid));
    out.bytes += io.value_or(0);
    out.ran_us += proc::read_usage(entry.pid).ran_us;
  }
  return out;
}

void StallWatch::got_on() {
  since_us_ = monotonic_us();
  last_ = look();
}

bool StallWatch::stalled() {
  constexpr uint64_t kIdle = 100;
  const Work now = look();
  const uint64_t passed_us = monotonic_us() - since_us_;
  // One that has ended takes its counts along: less is a change, too.
  const bool has_run = now.ran_us < last_.ran_us || now.ran_us - last_.ran_us > passed_us / kIdle + 1000;
  if (now.hidden || now.bytes != last_.bytes || has_run) got_on();
  return monotonic_us() - since_us_ > limit_us_;
}

bool kill_who_lets_go(pid_t root, const std::vector<pid_t>& traced) {
  constexpr uint64_t kMomentUs = 100'000;
  const std::vector<pid_t> all = who_lets_go(root, traced);
  for (const pid_t pid : all) ::kill(pid, SIGKILL);
  auto ended = [&] { return std::all_of(all.begin(), all.end(), proc::has_ended); };
  for (Stopwatch watch; !ended() && watch.elapsed_us() < kMomentUs;) ::usleep(1'000);
  return ended();
}

void kill_restore(pid_t root, const std::vector<pid_t>& traced) {
  std::vector<pid_t> all = who_lets_go(root, traced);
  if (const auto tree = proc::read_tree(root)) {
    for (const proc::TreeEntry& entry : *tree) all.push_back(entry.pid);
  }
  for (const pid_t pid : all) ::kill(pid, SIGKILL);
}

}  // namespace ckpt::migrate
