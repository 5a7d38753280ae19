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

namespace ckpt::cli {

namespace {

constexpr uint64_t kTickUs = 100'000;
constexpr uint64_t kFirstLineUs = 250'000;
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
  if (state.elapsed_us == 0) return 0;
  return static_cast<uint64_t>(static_cast<double>(state.done) * 1e6 / static_cast<double>(state.elapsed_us));
}

std::string json_line(const char* event, const PhaseState& state) {
  nlohmann::ordered_json doc = {{"schema", "ckpt.progress/1"}, {"event", event},      {"phase", state.phase},
                                {"bytes", state.done},         {"total", state.total}, {"elapsed_us", state.elapsed_us}};
  return doc.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string progress_text(const PhaseState& state) {
  std::string out = escape_for_terminal(state.phase);
  const bool bounded = state.total >= state.done && state.total > 0;
  if (state.done > 0 || bounded) out += "  " + human_bytes(state.done);
  if (bounded) {
    out += fmt::format(" of {}  {:.0f}%", human_bytes(state.total),
                       100.0 * static_cast<double>(state.done) / static_cast<double>(state.total));
  }
  const uint64_t rate = bytes_per_second(state);
  if (rate > 0) out += fmt::format("  {}/s", human_bytes(rate));
  if (rate > 0 && bounded) {
    const uint64_t left = (state.total - state.done) / rate;
    out += left < 120 ? fmt::format("  {} s left", left) : fmt::format("  {} min left", left / 60);
  }
  return out;
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

void Progress::note(std::string_view text) {
  if (!notes_) return;
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
  if (g_line_requested.exchange(false, std::memory_order_relaxed)) {
    print(form_ == Form::kJson ? json_line("progress", state()) : progress_text(state()));
  }
  if (form_ == Form::kPlain && now - printed_us_ >= kPlainUs) print(progress_text(state()));
  if (form_ == Form::kJson && now - printed_us_ >= kJsonUs) print(json_line("progress", state()));
  if (form_ != Form::kLine || now - first_us_ < kFirstLineUs) return;
  if (hidden_ && done_.load(std::memory_order_relaxed) == hidden_at_) return;
  hidden_ = false;
  // One column stays free: some terminals wrap when the last one is filled.
  fmt::print(stream_, "\r{}\033[K", elide(progress_text(state()), columns_of(stream_) - 1));
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

PhaseState Progress::state() const {
  return {phase_, done_.load(std::memory_order_relaxed), total_, monotonic_us() - begun_us_};
}

}  // namespace ckpt::cli
