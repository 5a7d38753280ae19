#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lib/base/clock.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/remote/mounted.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kTickUs = 100'000;
constexpr uint64_t kFirstLineUs = 250'000;
constexpr uint64_t kRateUs = 3'000'000;  // how far back the rate looks
constexpr uint64_t kPlainUs = 10'000'000;
constexpr uint64_t kJsonUs = 1'000'000;

std::atomic<bool> g_line_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

size_t columns_of(std::FILE* stream) {
  winsize size{};
  if (::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

uint64_t bytes_per_second(const PhaseState& state) {
  const bool recent = state.recent_us != 0;
  const uint64_t bytes = recent ? state.recent_bytes : state.done, us = recent ? state.recent_us : state.elapsed_us;
  if (us == 0) return 0;
  return static_cast<uint64_t>(static_cast<double>(bytes) * 1e6 / static_cast<double>(us));
}

std::string json_line(const char* event, const PhaseState& state) {
  nlohmann::ordered_json doc = {{"schema", "ckpt.progress/1"}, {"event", event},
                                {"phase", state.phase},        {"bytes", state.done},
                                {"total", state.total},        {"elapsed_us", state.elapsed_us}};
  return doc.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string progress_text(const PhaseState& state, size_t columns) {
  const bool bounded = state.total >= state.done && state.total > 0;
  const uint64_t rate = bytes_per_second(state);
  std::string done, total, share, speed, left;
  if (state.done > 0 || bounded) done = "  " + human_bytes(state.done);
  if (bounded) total = " of " + human_bytes(state.total);
  if (bounded)
    share = fmt::format("  {:.0f}%", 100.0 * static_cast<double>(state.done) / static_cast<double>(state.total));
  if (rate > 0) speed = fmt::format("  {}/s", human_bytes(rate));
  if (rate > 0 && bounded) {
    const uint64_t seconds = (state.total - state.done) / rate;
    left = seconds < 120 ? fmt::format("  {} s left", seconds) : fmt::format("  {} min left", seconds / 60);
  }
  const std::string phase = escape_for_terminal(state.phase);
  std::string line = phase + done + total + share + speed + left;
  for (std::string* least : {&speed, &total, &done, &left, &share}) {
    if (line.size() <= columns) break;
    least->clear();
    line = phase + done + total + share + speed + left;
  }
  return elide(line, columns);
}

std::string elide(const std::string& text, size_t columns) {
  size_t seen = 0, cut = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text[i] & 0xc0) == 0x80) continue;  // a continuation byte takes no column
    if (seen + 3 == columns) cut = i;
    if (seen++ == columns) return columns < 3 ? std::string(columns, '.') : text.substr(0, cut) + "...";
  }
  return text;
}

Progress::Form Progress::form_of(const std::string& option, std::FILE* stream) {
  if (option == "none") return Form::kSilent;
  if (option == "tty") return Form::kLine;
  if (option == "plain") return Form::kPlain;
  if (option == "jsonl") return Form::kJson;
  const char* term = std::getenv("TERM");
  const bool can_erase = ::isatty(::fileno(stream)) != 0 && term != nullptr && std::string(term) != "dumb";
  return can_erase ? Form::kLine : Form::kPlain;
}

void Progress::request_line() { g_line_requested.store(true, std::memory_order_relaxed); }

void Progress::begin(std::string_view phase, uint64_t total_bytes) {
  std::lock_guard lock(mutex_);
  phase_ = phase;
  total_ = total_bytes;
  done_.store(0, std::memory_order_relaxed);
  begun_us_ = monotonic_us();
  seen_ = {{begun_us_, 0}};
  hidden_ = false;
  if (form_ == Form::kJson) print(json_line("begin", state()));
  if (thread_.joinable()) return;
  first_us_ = printed_us_ = begun_us_;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  (void)start_thread(thread_, [this] { run(); });  // without one no progress is shown
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void Progress::note(std::string_view line) {
  if (!notes_) return;
  const std::string text = remote::with_urls(line).value_or(std::string(line));
  std::lock_guard lock(mutex_);
  if (form_ == Form::kJson) {
    nlohmann::ordered_json doc = {{"schema", "ckpt.progress/1"}, {"event", "note"}, {"text", text}};
    print(doc.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    print("note: " + escape_for_terminal(text));
  }
}

void Progress::hide() {
  std::lock_guard lock(mutex_);
  erase();
  hidden_ = true;
  hidden_at_ = done_.load(std::memory_order_relaxed);
}

void Progress::finish() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
  std::lock_guard lock(mutex_);
  erase();
}

void Progress::run() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, std::chrono::microseconds(kTickUs), [this] { return stopping_; })) tick();
}

/// With the lock held.
void Progress::tick() {
  const uint64_t now = monotonic_us();
  remember();
  if (g_line_requested.exchange(false, std::memory_order_relaxed)) {
    print(form_ == Form::kJson ? json_line("progress", state()) : progress_text(state()));
  }
  if (form_ == Form::kPlain && now - printed_us_ >= kPlainUs) print(progress_text(state()));
  if (form_ == Form::kJson && now - printed_us_ >= kJsonUs) print(json_line("progress", state()));
  if (form_ != Form::kLine || now - first_us_ < kFirstLineUs) return;
  if (hidden_ && done_.load(std::memory_order_relaxed) == hidden_at_) return;
  hidden_ = false;
  // One column stays free: some terminals wrap when the last one is filled.
  fmt::print(stream_, "\r{}\033[K", progress_text(state(), columns_of(stream_) - 1));
  std::fflush(stream_);
  shown_ = true;
}

/// A whole line, above the overwriting one. With the lock held.
void Progress::print(const std::string& line) {
  erase();
  fmt::print(stream_, "{}\n", line);
  std::fflush(stream_);
  printed_us_ = monotonic_us();
}

void Progress::erase() {
  if (!shown_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  shown_ = false;
}

/// With the lock held.
void Progress::remember() {
  const uint64_t now = monotonic_us();
  seen_.emplace_back(now, done_.load(std::memory_order_relaxed));
  while (seen_.size() > 2 && seen_[1].first + kRateUs < now) seen_.pop_front();
}

PhaseState Progress::state() const {
  const uint64_t now = monotonic_us(), done = done_.load(std::memory_order_relaxed);
  PhaseState out{phase_, done, total_, now - begun_us_, 0, 0};
  // Of a phase that has just begun the mean says more.
  if (now - begun_us_ > kRateUs && !seen_.empty() && seen_.front().second <= done) {
    out.recent_bytes = done - seen_.front().second;
    out.recent_us = now - seen_.front().first;
  }
  return out;
}

}  // namespace ckpt::cli
