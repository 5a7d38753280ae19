#include "lib/engine/safe_points.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/safe_point_word.h"
#include "lib/base/threads.h"
#include "lib/proc/procfs.h"
#include "lib/proc/remote_memory.h"

namespace ckpt::engine {

namespace {

constexpr size_t kTarget = offsetof(SafePointWord, target), kHeartbeat = offsetof(SafePointWord, heartbeat);

/// Of a process that has come to a safe point. One that runs a program anew (execve) has no pid in its word until then.
bool is_word(const SafePointWord& word) {
  return std::memcmp(word.magic, kSafePointMagic, sizeof word.magic) == 0 && word.version == kSafePointVersion &&
         word.pid != 0;
}

/// kNotFound: it has ended. kBusy: something else lies there by now.
Result<SafePointWord> read_word(int pid, proc::RemoteAddress at) {
  SafePointWord out;
  const auto done = proc::read_memory(pid, at, {reinterpret_cast<std::byte*>(&out), sizeof out});
  if (!done && done.error().code == Code::kNotFound) return done.error();
  if (done && is_word(out)) return out;
  return fail(Code::kBusy, proc::describe_pid(pid),
              "runs another program by now, or has unloaded libckpt-flash: it comes to no safe point");
}

bool is_library(const proc::Vma& vma) {
  const std::string name = vma.name.substr(vma.name.rfind('/') + 1);
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  constexpr uint64_t kMost = 1 << 20;
  return name.starts_with("libckpt-flash.so") && (vma.prot & kReadWrite) == kReadWrite && !vma.shared &&
         vma.end - vma.start <= kMost;
}

/// Nothing: this process has not come to a safe point.
std::optional<proc::RemoteAddress> find_word(int pid) {
  const auto maps = proc::read_maps(pid, false);
  const auto status = proc::read_status(pid, pid);
  if (!maps || !status || status->ns_pids.empty()) return std::nullopt;
  for (const proc::Vma& vma : *maps) {
    if (!is_library(vma)) continue;
    std::vector<std::byte> bytes(vma.end - vma.start);
    if (!proc::read_memory(pid, proc::RemoteAddress(vma.start), bytes)) continue;
    for (size_t at = 0; at + sizeof(SafePointWord) <= bytes.size(); at += alignof(SafePointWord)) {
      SafePointWord word;
      std::memcpy(static_cast<void*>(&word), bytes.data() + at, sizeof word);
      // A child that has come to none yet has its parent's.
      if (is_word(word) && word.pid == static_cast<uint32_t>(status->ns_pids.back()))
        return proc::RemoteAddress(vma.start + at);
    }
  }
  return std::nullopt;
}

std::string write_report(const BarrierReport& report) {
  return fmt::format("{} {}", report.highest, report.in_time ? 1 : 0);
}

Result<BarrierReport> read_report(const std::string& text) {
  BarrierReport out;
  const size_t blank = text.find(' ');
  const char* const end = text.data() + std::min(blank, text.size());
  const auto parsed = std::from_chars(text.data(), end, out.highest);
  if (blank == std::string::npos || parsed.ec != std::errc() || parsed.ptr != end)
    return fail(Code::kCorrupt, "--barrier", "another member says what is not understood");
  out.in_time = text.substr(blank + 1) == "1";
  return out;
}

/// What all members say, alone this one.
Result<std::vector<BarrierReport>> tell(Together* together, const char* step, const BarrierReport& mine,
                                        uint64_t most_us) {
  std::vector<BarrierReport> out = {mine};
  if (together == nullptr) return out;
  CKPT_TRY_ASSIGN(const auto answers, together->tell(step, write_report(mine), most_us));
  out.clear();
  for (const std::string& answer : answers) {
    CKPT_TRY_ASSIGN(const BarrierReport report, read_report(answer));
    out.push_back(report);
  }
  return out;
}

Error too_slow() {
  return Error(Code::kBusy, "--safe-point", "the processes have not come to their safe points in time")
      .with_hint("a longer --timeout waits longer");
}

}  // namespace

Result<std::unique_ptr<SafePoints>> SafePoints::find(const std::vector<capture::Member>& members) {
  std::unique_ptr<SafePoints> out(new SafePoints());
  for (const capture::Member& member : members) {
    if (member.entry.zombie) continue;
    const auto word = find_word(member.entry.pid);
    if (!word) continue;
    UniqueFd pidfd(::fcntl(member.pidfd.get(), F_DUPFD_CLOEXEC, 3));
    if (!pidfd) return sys_error(proc::describe_pid(member.entry.pid), "cannot be held on to");
    out->points_.push_back({member.entry.pid, std::move(pidfd), *word, 0});
  }
  if (!out->points_.empty()) return out;
  return fail(Code::kUnsupported, "--safe-point",
              "none of the processes has called ckpt_safe_point (libckpt-flash) yet");
}

/// kNotFound: it has ended. kBusy: as read_word.
Result<void> SafePoints::write(const Point& point, size_t member, uint64_t value) {
  if (::syscall(SYS_pidfd_send_signal, point.pidfd.get(), 0, nullptr, 0) != 0)
    return sys_error(proc::describe_pid(point.pid), "cannot be told of a safe point");
  CKPT_TRY(read_word(point.pid, point.word));
  return proc::write_memory(point.pid, point.word + member, {reinterpret_cast<const std::byte*>(&value), sizeof value});
}

/// Of what was armed.
Result<bool> SafePoints::is_early_enough() const {
  bool out = true;
  for (const Point& point : points_) {
    CKPT_TRY_ASSIGN(const SafePointWord word, read_word(point.pid, point.word));
    out = out && is_in_time(word.calls, point.target);
  }
  return out;
}

/// Each process knows at which safe point to wait, and has not passed it.
Result<void> SafePoints::choose(bool agreed, uint64_t timeout_us, Together* together) {
  for (unsigned round = 0; round < kMostBarrierRounds; ++round) {
    BarrierReport mine;
    std::vector<uint64_t> calls;
    for (const Point& point : points_) {
      CKPT_TRY_ASSIGN(const SafePointWord word, read_word(point.pid, point.word));
      calls.push_back(word.calls);
      mine.highest = std::max(mine.highest, word.calls);
    }
    // The first time members may still be copying.
    CKPT_TRY_ASSIGN(const auto need, tell(together, "need", mine, round == 0 ? 0 : timeout_us));
    for (size_t i = 0; i < points_.size(); ++i) {
      points_[i].target = choose_target(agreed ? need : std::vector<BarrierReport>{{calls[i], false}}, round);
      CKPT_TRY(write(points_[i], kTarget, points_[i].target));
    }
    CKPT_TRY_ASSIGN(mine.in_time, is_early_enough());
    CKPT_TRY_ASSIGN(const auto ack, tell(together, "ack", mine, timeout_us));
    if (is_agreed(ack)) return {};
  }
  return fail(Code::kBusy, "--safe-point",
              fmt::format("the processes come to safe points faster than they can be told of one ({} attempts)",
                          kMostBarrierRounds));
}

Result<bool> SafePoints::all_wait() const {
  for (const Point& point : points_) {
    CKPT_TRY_ASSIGN(const SafePointWord word, read_word(point.pid, point.word));
    if (word.waits_at != point.target) return false;
  }
  return true;
}

Result<void> SafePoints::reach(const SafePointOptions& options, uint64_t timeout_us, Together* together,
                               const Cancel& cancel) {
  constexpr useconds_t kNapUs = 500;
  CKPT_TRY(start_beating());
  CKPT_TRY(choose(options.agreed, timeout_us, together));
  for (const Point& point : points_) {
    if (options.signal != 0)
      (void)::syscall(SYS_pidfd_send_signal, point.pidfd.get(), options.signal, nullptr, 0);
  }
  for (Stopwatch watch;;) {
    CKPT_TRY(cancel.check());
    CKPT_TRY_ASSIGN(const bool all, all_wait());
    if (all) break;
    if (watch.elapsed_us() > timeout_us) return too_slow();
    ::usleep(kNapUs);
  }
  CKPT_TRY(tell(together, "safe", {}, 2 * timeout_us));
  return {};
}

/// As long as ckpt lives they wait.
Result<void> SafePoints::start_beating() {
  const bool started = start_thread(beating_, [this] {
    std::unique_lock lock(mutex_);
    for (uint64_t beat = 1; !stopping_; ++beat) {
      for (const Point& point : points_) (void)write(point, kHeartbeat, beat);
      changed_.wait_for(lock, std::chrono::milliseconds(kSafePointBeatMs), [this] { return stopping_; });
    }
  });
  return started ? Result<void>() : Result<void>(no_thread("--safe-point"));
}

Result<void> SafePoints::leave_frozen() {
  CKPT_TRY_ASSIGN(const bool all, all_wait());
  if (!all) return fail(Code::kBusy, "--safe-point", "a process has not waited at its safe point until it stood still");
  let_go();
  return {};
}

void SafePoints::let_go() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (beating_.joinable()) beating_.join();
  for (Point& point : points_) {
    if (point.target != 0) (void)write(point, kTarget, 0);
    point.target = 0;
  }
}

}  // namespace ckpt::engine
