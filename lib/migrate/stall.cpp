#include "lib/migrate/stall.h"

#include <csignal>
#include <cstdlib>
#include <string>

#include "lib/base/clock.h"
#include "lib/proc/procfs.h"
#include "lib/proc/usage.h"

namespace ckpt::migrate {

namespace {

/// What /proc/PID/io counts, calls and bytes together: the sum is compared, and means nothing else.
uint64_t read_io(pid_t pid) {
  auto text = proc::read_small(pid, "io");
  uint64_t out = 0;
  for (size_t at = 0; text && (at = text->find(": ", at)) != std::string::npos; at += 2)
    out += std::strtoull(text->c_str() + at + 2, nullptr, 10);
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
    out.bytes += read_io(entry.pid);
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
  if (now.bytes != last_.bytes || now.ran_us < last_.ran_us || now.ran_us - last_.ran_us > passed_us / kIdle + 1000)
    got_on();
  return monotonic_us() - since_us_ > limit_us_;
}

void kill_restore(pid_t root, const std::vector<pid_t>& traced) {
  std::vector<pid_t> all = {root};
  for (const pid_t pid : traced) {
    auto status = proc::read_status(pid, pid);
    if (status && status->tracer > 1) all.push_back(status->tracer);
  }
  if (const auto tree = proc::read_tree(root)) {
    for (const proc::TreeEntry& entry : *tree) all.push_back(entry.pid);
  }
  for (const pid_t pid : all) ::kill(pid, SIGKILL);
}

}  // namespace ckpt::migrate
