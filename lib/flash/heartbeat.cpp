#include "lib/flash/heartbeat.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"

namespace ckpt::flash {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kBeats = 10;  ///< in the time after which silence counts
constexpr uint64_t kShortest = 20'000, kLongest = 1'000'000, kLookForStop = 50'000;

}  // namespace

Heartbeat::Heartbeat(fs::path folder, uint32_t own, uint64_t silent_us, std::string done, const Cancel& outer)
    : folder_(std::move(folder)), own_(own), silent_us_(silent_us), done_(std::move(done)), outer_(outer) {}

fs::path Heartbeat::file_of(uint32_t number) const { return folder_ / fmt::format("beat-{}", number); }

Result<void> Heartbeat::begin() {
  CKPT_TRY_ASSIGN(file_, io::open_file(file_of(own_), O_WRONLY | O_CREAT | O_NOFOLLOW));
  CKPT_TRY(beat());
  if (!start_thread(thread_, [this] { run(); })) return no_thread("heartbeat");
  return {};
}

Result<void> Heartbeat::beat() {
  const std::string text = fmt::format("{:020}", ++beats_);  // as long as the one before
  CKPT_TRY(io::pwrite_all(file_.get(), as_bytes(text), 0, file_of(own_).string()));
  // Others see what a network's file system has sent: begun here, not waited for. A local one has it already.
  (void)::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  return {};
}

std::optional<Error> Heartbeat::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void Heartbeat::watch(const std::vector<uint32_t>& others) {
  const std::lock_guard lock(mutex_);
  for (uint32_t other : others) {
    if (other != own_) watched_.try_emplace(other, Seen{"", monotonic_us()});
  }
}

Result<void> Heartbeat::check() const {
  CKPT_TRY(outer_.check());
  const std::lock_guard lock(mutex_);
  return lost_ ? Result<void>(*lost_) : Result<void>();
}

/// Opened anew each time: that is when a network's file system asks its server.
void Heartbeat::look() {
  std::vector<uint32_t> others;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, seen] : watched_) others.push_back(number);
  }
  for (uint32_t number : others) {
    const auto content = io::read_file(file_of(number), 64);
    const uint64_t now = monotonic_us();
    bool silent = false;
    {
      const std::lock_guard lock(mutex_);
      Seen& seen = watched_[number];
      if (content && *content != seen.content) seen = {*content, now};
      silent = now - seen.since_us >= silent_us_;
    }
    if (!silent) continue;
    const bool done = !done_.empty() && io::read_file(folder_ / (done_ + std::to_string(number)), 64);
    const std::lock_guard lock(mutex_);
    if (done)
      watched_.erase(number);
    else if (!lost_)
      lost_.emplace(
          Code::kMismatch, "",
          fmt::format("the agent of rank {} is lost: nothing was heard of it for {}", number, human_us(silent_us_)));
  }
}

void Heartbeat::run() {
  const uint64_t pause = std::clamp(silent_us_ / kBeats, kShortest, kLongest);
  uint64_t next_us = 0;
  std::unique_lock lock(mutex_);
  while (!ended_) {
    if (monotonic_us() >= next_us) {
      lock.unlock();
      Result<void> done = beat();  // where it cannot, the others hear nothing
      look();
      next_us = monotonic_us() + pause;
      lock.lock();
      trouble_ = done ? std::nullopt : std::optional(done.error());
    }
    if (outer_.requested() || lost_) stop_.request();
    woken_.wait_for(lock, std::chrono::microseconds(std::min(pause, kLookForStop)), [&] { return ended_; });
  }
}

void Heartbeat::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace ckpt::flash
