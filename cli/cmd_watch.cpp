// watch: images of a process every so often, and the process again from the newest one when it died.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "cli/job_images.h"
#include "cli/retention.h"
#include "cli/save_cost.h"
#include "lib/base/duration.h"
#include "lib/base/text.h"
#include "lib/engine/check.h"
#include "lib/engine/watched_process.h"
#include "lib/schedule/plan.h"
#include "lib/schedule/stretch_news.h"
#include "lib/schedule/timer.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

struct WatchFlags {
  int pid = 0;
  std::string dir, every, plan, max_overhead, restart;
  uint64_t full_every = 24;
  bool on_sigterm = false, restarts = false;
  schedule::RetentionRules rules;
  JobFlags job;
};

constexpr uint64_t kSecond = 1'000'000;
constexpr uint64_t kFirstBackoff = kSecond, kLongestBackoff = 60 * kSecond;
constexpr uint64_t kDefaultRestarts = 3;
/// A planned period is at least so many times as long as the writing of an image takes: the disk is busy for a tenth.
constexpr double kWritingShare = 10;
constexpr size_t kMeasured = 5;

/// What was asked for, in numbers.
struct WatchRequest {
  uint64_t period_us = 0;  ///< 0: none, or by the plan
  double mtbf_s = 0;       ///< 0: no plan
  schedule::Limits limits;  ///< `saving`: also of what was measured
  uint64_t restarts = 0;
};

std::string end_text(const engine::ProcessEnd& end) {
  return end.signal != 0 ? fmt::format("was ended by signal {}", end.signal)
                         : fmt::format("has ended with exit code {}", end.code);
}

class Watch : JobImages {
 public:
  Watch(Context& context, const WatchFlags& flags, const WatchRequest& request, engine::WatchedProcess process,
        ImageFolder folder, SignalQueue signals)
      : JobImages(context, "ckpt.watch/1", {flags.job, flags.rules, flags.full_every}, std::move(folder),
                  std::move(signals)),
        flags_(flags),
        request_(request),
        process_(std::move(process)),
        timer_(request.period_us, monotonic_us()),
        backoff_(request.restarts, kFirstBackoff, kLongestBackoff) {}

  Result<void> run() {
    events_.tell("watching",
                 fmt::format("watching process {} ({})", process_.pid(), escape_for_terminal(process_.name())), "pid",
                 process_.pid(), "folder", folder_.path().string(), "period_us", timer_.period_us());
    // The first one at once: should the process die before a period has passed, there is one to go back to.
    if (request_.period_us > 0 || request_.mtbf_s > 0) CKPT_TRY(save_first());
    for (;;) {
      if (stopping()) return finish();
      if (process_.has_ended()) {
        CKPT_TRY_ASSIGN(const bool goes_on, handle_end());
        if (!goes_on) return {};
        continue;
      }
      if (timer_.is_due(monotonic_us())) {
        timer_.begun(monotonic_us());
        (void)save().has_value();  // it was told
        continue;
      }
      wait(process_.fd(), timer_.wait_us(monotonic_us()));
    }
  }

 private:
  bool stopping() {
    take_signals();
    return stops_ > 0;
  }

  void take_signals() {
    if (context_.cancel.requested() && stops_ == 0) stops_ = 1;
    while (const int signal = signals_.next()) {
      if (signal != SIGCHLD) ++stops_;
    }
    reap_strangers({process_.pid(), running_});  // the job itself is left for WatchedProcess::end
  }

  /// What can never be saved is said at once, and nothing else is tried.
  Result<void> save_first() {
    timer_.begun(monotonic_us());
    Result<void> done = save();
    if (done || process_.has_ended() || done.error().code == Code::kBusy || done.error().code == Code::kIo) return {};
    return done;
  }

  Result<void> save() {
    Result<void> done = try_save();
    if (!done && !process_.has_ended()) {
      tell_failed(process_.pid(), done.error());
    }
    return done;
  }

  Result<void> try_save() {
    CKPT_TRY_ASSIGN(const ImageFolder::Next next, next_image(process_.pid()));
    Stopwatch watch;
    CKPT_TRY_ASSIGN(CkptRun run, start_run("pre-dump", process_.pid(), next));
    running_ = run.pid();
    std::optional<int> code = run.finished();
    for (bool told = false; !code; code = run.finished()) {
      wait(-1, std::nullopt);
      take_signals();
      if (stops_ > 1 && !std::exchange(told, true)) run.stop();  // whoever asks twice is in a hurry
    }
    running_ = 0;
    if (*code != 0) return run.error();
    tell_saved(next, run.document(), watch);
    backoff_.progress();
    ++saved_;
    remove_superfluous();
    return {};
  }

  void tell_saved(const ImageFolder::Next& next, const std::string& document, const Stopwatch& watch) {
    const ImageFigures figures = figures_of(document);
    const uint64_t us = watch.elapsed_us();
    // No process misses more than all of the time, however many of its threads wait.
    const uint64_t cost = std::min(figures.stall_us + figures.waited_us, std::max(us, figures.stall_us));
    events_.tell("saved", text_of(next, figures) + ", " + human_us(us), "pid", process_.pid(), "image",
                 next.dir.string(), "parent", figures.fell_back.empty() ? next.prev.string() : "", "fell_back",
                 figures.fell_back, "stall_us", figures.stall_us, "cost_us", cost, "duration_us", us, "bytes",
                 figures.bytes);
    stalls_.push_back(figures.stall_us);
    durations_.push_back(us);
    if (request_.mtbf_s > 0) plan();
    if (request_.limits.saving) keep_limit(watch.started_us(), cost);
  }

  /// From the beginning of an image to that of the next one no more than the limit's part is what the image has cost.
  void keep_limit(uint64_t began_us, uint64_t cost_us) {
    constexpr double kMost = 1e15;
    const double least = std::ceil(static_cast<double>(cost_us) / *request_.limits.saving);
    const auto least_us = static_cast<uint64_t>(std::min(least, kMost));
    timer_.not_before(began_us + least_us);
    if (!stretch_.is_news(least_us <= timer_.period_us() ? 0 : least_us)) return;
    events_.tell("stretched",
                 fmt::format("images come less often than every {}, for --max-overhead {}: the last one has cost {}",
                             format_duration(timer_.period_us()), flags_.max_overhead, human_us(cost_us)),
                 "pid", process_.pid(), "period_us", timer_.period_us(), "next_us", least_us, "cost_us", cost_us);
  }

  static double mean_of_last(const std::vector<uint64_t>& values) {
    const size_t count = std::min(values.size(), kMeasured);
    double sum = 0;
    for (size_t i = values.size() - count; i < values.size(); ++i) sum += static_cast<double>(values[i]);
    return sum / static_cast<double>(count) / 1e6;
  }

  /// By what the last images cost.
  void plan() {
    const schedule::Level level{std::max(mean_of_last(stalls_), 1e-6), 0, kWritingShare * mean_of_last(durations_),
                                1 / request_.mtbf_s};
    const schedule::Plan plan = schedule::make_plan({level}, schedule::Model::kExact, request_.limits);
    const auto period = static_cast<uint64_t>(std::clamp(plan.rhythm.period_s, 0.001, 1e9) * 1e6);
    const double change = static_cast<double>(period) / static_cast<double>(std::max<uint64_t>(timer_.period_us(), 1));
    if (change > 0.9 && change < 1.1) return;
    timer_.set_period(period, monotonic_us());
    events_.tell("planned", fmt::format("an image every {}", format_duration(period)), "pid", process_.pid(),
                 "period_us", period, "overhead", plan.cost.overhead);
  }

  /// The last image; the process runs on.
  Result<void> finish() {
    Result<void> last;
    if (!process_.has_ended()) last = save();
    events_.tell("stopped", fmt::format("process {} is watched no more", process_.pid()), "pid", process_.pid(),
                 "images", saved_);
    return last;
  }

  /// False: there is nothing more to watch, and the exit status is set.
  Result<bool> handle_end() {
    const std::optional<engine::ProcessEnd> end = process_.end();
    const bool normal = end && end->signal == 0 && end->code == 0;
    std::optional<int> code, signal;
    if (end && end->signal != 0)
      signal = end->signal;
    else if (end)
      code = end->code;
    events_.tell("ended",
                 fmt::format("process {} {}", process_.pid(), end ? end_text(*end) : "has ended; nobody can say how"),
                 "pid", process_.pid(), "exit_code", code, "signal", signal);
    if (!end && request_.restarts > 0) {
      return Error(Code::kUnsupported, fmt::format("process {}", process_.pid()),
                   "has ended, and before Linux 6.15 only its parent is told how: it is not restored")
          .with_hint("ckpt guard starts the program itself; ckpt restore -f FOLDER@latest restores it");
    }
    if (end) context_.exit_status = end->shell_status();
    if (normal || !end || request_.restarts == 0) return false;
    return restart();
  }

  Result<bool> restart() {
    Error last(Code::kMismatch, fmt::format("process {}", process_.pid()), "keeps ending right after its restore");
    while (const std::optional<uint64_t> pause = backoff_.next_us()) {
      events_.tell("restarting",
                   fmt::format("restoring it in {}, attempt {} of {}", format_duration(*pause), backoff_.made(),
                               request_.restarts),
                   "pid", process_.pid(), "attempt", backoff_.made(), "wait_us", *pause);
      for (const uint64_t until = monotonic_us() + *pause; monotonic_us() < until;) {
        wait(-1, until - monotonic_us());
        if (!stopping()) continue;
        events_.tell("stopped", "told to stop: the process is not restored", "pid", process_.pid(), "images", saved_);
        return false;
      }
      Result<void> done = try_restart();
      if (done) return true;
      events_.tell("failed", "not restored: " + escape_for_terminal(done.error().text()), "pid", process_.pid(), "code",
                   exit_code(done.error().code), "message", done.error().text());
      last = std::move(done).error();
      if (last.code == Code::kNotFound) break;  // no image: waiting makes none
    }
    events_.tell("gave-up", fmt::format("gave up after {} attempts", backoff_.made()), "pid", process_.pid(),
                 "attempts", backoff_.made());
    context_.exit_status = 0;
    return last;
  }

  Result<void> try_restart() {
    // Its number is free once it is reaped, which had to wait while a ckpt still held on to it.
    (void)process_.end();
    CKPT_TRY_ASSIGN(auto images, folder_.good_images(0, context_.progress));
    std::erase_if(images, [&](const std::filesystem::path& image) {
      auto manifest = store::read_manifest(image);
      return !manifest || manifest->tree.root().pid != process_.pid();  // of another job that used the folder
    });
    if (images.empty())
      return fail(Code::kNotFound, folder_.path().string(),
                  fmt::format("holds no good image of process {}", process_.pid()));
    CKPT_TRY_ASSIGN(const Restored restored, restore_newest(images, flags_.job, signals_, context_.progress));
    CKPT_TRY_ASSIGN(process_, engine::WatchedProcess::open(restored.pid));
    if (!process_.has_ended()) CKPT_TRY(process_.lock());
    context_.exit_status = 0;
    if (timer_.period_us() > 0) timer_.set_period(timer_.period_us(), monotonic_us());
    events_.tell("restored",
                 fmt::format("process {} goes on from {}", restored.pid, escape_for_terminal(restored.image.string())),
                 "pid", restored.pid, "image", restored.image.string());
    return {};
  }

  const WatchFlags& flags_;
  const WatchRequest& request_;
  engine::WatchedProcess process_;
  schedule::SaveTimer timer_;
  schedule::Backoff backoff_;
  std::vector<uint64_t> stalls_, durations_;
  uint64_t saved_ = 0;
  int stops_ = 0;
  schedule::StretchNews stretch_;  ///< of images that come less often than asked for
  pid_t running_ = 0;  ///< the ckpt at work
};

Result<WatchRequest> read_request(const WatchFlags& flags) {
  WatchRequest out;
  if (flags.pid <= 0) return fail(Code::kUsage, "-p " + std::to_string(flags.pid), "is not a pid");
  if (flags.every.empty() && flags.plan.empty() && !flags.on_sigterm) {
    return Error(Code::kUsage, "watch", "--every, --plan or --on-sigterm is required: when are images to be made?")
        .with_hint("--every 30s; --plan 3h: as ckpt plan has it for a failure every three hours");
  }
  if (!flags.every.empty()) {
    CKPT_TRY_ASSIGN(out.period_us, parse_duration(flags.every, "--every"));
    if (out.period_us < 1000) return fail(Code::kUsage, "--every", "has to be a millisecond at least");
  }
  if (!flags.plan.empty()) {
    CKPT_TRY_ASSIGN(const uint64_t mtbf, parse_duration(flags.plan, "--plan"));
    if (mtbf == 0) return fail(Code::kUsage, "--plan", "has to be longer than nothing");
    out.mtbf_s = static_cast<double>(mtbf) / 1e6;
  }
  if (!flags.max_overhead.empty()) {
    if (flags.plan.empty() && flags.every.empty())
      return fail(Code::kUsage, "--max-overhead", "goes with --every and --plan");
    CKPT_TRY_ASSIGN(out.limits.saving, parse_part(flags.max_overhead, "--max-overhead"));
  }
  if (!flags.restarts) return out;
  out.restarts = kDefaultRestarts;
  if (flags.restart.empty()) return out;
  auto [end, error] = std::from_chars(flags.restart.data(), flags.restart.data() + flags.restart.size(), out.restarts);
  if (error != std::errc() || end != flags.restart.data() + flags.restart.size() || out.restarts == 0)
    return fail(Code::kUsage, "--restart", fmt::format("'{}' is not a number above zero", flags.restart));
  return out;
}

Result<void> run_watch(Context& context, const WatchFlags& flags) {
  CKPT_TRY_ASSIGN(const WatchRequest request, read_request(flags));
  // From here on a signal is not lost: the last image is made.
  CKPT_TRY_ASSIGN(SignalQueue signals, SignalQueue::take({SIGTERM, SIGINT, SIGHUP}));
  CKPT_TRY_ASSIGN(engine::WatchedProcess process, engine::WatchedProcess::open(flags.pid));
  CKPT_TRY(engine::check_process(flags.pid));
  if (process.has_ended()) return fail(Code::kNotFound, fmt::format("process {}", flags.pid), "has ended");
  CKPT_TRY(process.lock());
  CKPT_TRY_ASSIGN(ImageFolder folder, ImageFolder::open(flags.dir));
  folder.remove_staging();
  // What is restored becomes a child of this process, which is told of its end on any kernel.
  if (request.restarts > 0) ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return Watch(context, flags, request, std::move(process), std::move(folder), std::move(signals)).run();
}

}  // namespace

Command::Run add_watch(VerbOptions& app) {
  auto flags = std::make_shared<WatchFlags>();
  app.add_option("-p,--pid,-t,--tree", flags->pid, "The process, with all its descendants").required();
  app.add_option("-f,--images-dir,-D,--dir", flags->dir, "The folder for its images, made if need be").required();
  const VerbOption every =
      app.add_option("--every", flags->every, "An image now, and again each time so much time has passed")
          .type_name("TIME");
  app.add_option("--plan", flags->plan,
                 "An image now, then as often as ckpt plan says for a failure every so often, by what images cost")
      .type_name("TIME")
      .excludes(every);
  app.add_option("--max-overhead", flags->max_overhead,
                 "Images may cost the process at most this part of its time: else they come less often")
      .type_name("PART");
  app.add_flag("--on-sigterm", flags->on_sigterm,
               "An image when ckpt gets SIGTERM: with --every and --plan it does so, too");
  app.add_option("--full-every", flags->full_every, "The most images that one may lean on, itself counted (default 24)")
      .in_range(1, 10'000)
      .type_name("N");
  add_retention_flags(app, flags->rules);
  app.add_optional_value("--restart", flags->restarts, flags->restart,
                         "When it ends by a signal or with another exit code than 0, restore the newest good image: at "
                         "most MAX times without a new image in between (default 3)",
                         "[MAX]");
  add_job_flags(app, flags->job);
  return [flags](Context& context) { return run_watch(context, *flags); };
}

}  // namespace ckpt::cli
