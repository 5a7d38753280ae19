// guard: a program that becomes an image when it has to make way, and goes on from it the next time.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cli/guard_folder.h"
#include "cli/guard_notice.h"
#include "cli/inherited_signals.h"
#include "cli/job_images.h"
#include "cli/program_file.h"
#include "cli/retention.h"
#include "lib/base/duration.h"
#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/text.h"
#include "lib/engine/watched_process.h"
#include "lib/schedule/saves.h"
#include "lib/schedule/timer.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kTick = 200'000;  ///< how often a notice file is looked for
constexpr int kDefaultStatus = 75;   ///< EX_TEMPFAIL of sysexits(3): try again

struct GuardFlags {
  std::string dir, grace = "30s", every, notice_file, notice;
  uint64_t full_every = 24;
  int status = kDefaultStatus;
  bool requeue = false, fresh = false;
  schedule::RetentionRules rules;
  JobFlags job;
  std::vector<std::string> command;
};

struct GuardRequest {
  uint64_t grace_us = 0, period_us = 0;
  std::string slurm_job;  ///< to requeue; empty: none
  std::string program;
};

/// Whether Slurm has queued the job again.
bool requeue(const std::string& slurm_job, const sigset_t& signals) {
  const pid_t child = ::fork();
  if (child == 0) {
    restore_signals();
    sigprocmask(SIG_SETMASK, &signals, nullptr);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execlp("scontrol", "scontrol", "requeue", slurm_job.c_str(), nullptr);
    ::_exit(127);
  }
  if (child < 0) return false;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    default:
      return "a signal";
  }
}

class Guarded : JobImages {
 public:
  Guarded(Context& context, const GuardFlags& flags, const GuardRequest& request, ImageFolder folder,
          SignalQueue signals, GuardState state)
      : JobImages(context, "ckpt.guard/1", {flags.job, flags.rules, flags.full_every}, std::move(folder),
                  std::move(signals)),
        flags_(flags),
        request_(request),
        state_(std::move(state)),
        timer_(request.period_us, monotonic_us()),
        notice_(flags.notice_file, flags.notice, signals_.before()) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  Result<void> run() {
    CKPT_TRY(begin());
    for (;;) {
      const std::string why = take_signals();
      if (process_->has_ended()) return finish_ended();
      if (!why.empty()) return make_way(why);
      if (std::string notice = notice_.look(); !notice.empty()) return make_way(notice);
      if (background_) {
        if (look_after_image()) remove_superfluous();
      } else if (timer_.is_due(monotonic_us())) {
        start_image();
      }
      wait(process_->fd(), patience());
    }
  }

 private:
  // --- how it begins -------------------------------------------------------------------------------------------------

  Result<void> begin() {
    if (adopt()) {
      if (!flags_.fresh) return {};
      return Error(Code::kBusy, fmt::format("process {}", state_.pid),
                   "runs since an earlier guard: nothing is started")
          .with_hint("without --fresh it is guarded again");
    }
    if (flags_.fresh) CKPT_TRY(forget_images());
    CKPT_TRY_ASSIGN(const std::vector<fs::path> images, folder_.good_images(state_.over, context_.progress));
    if (images.empty()) return start_command();
    if (state_.command != flags_.command) {
      return Error(Code::kUsage, folder_.path().string(),
                   fmt::format("holds images of another command: {}", fmt::join(state_.command, " ")))
          .with_hint("name another folder, or say --fresh to leave these images alone");
    }
    return restore(images);
  }

  /// A guard that was killed leaves its job running: it goes on to be guarded.
  bool adopt() {
    if (state_.pid == 0 || state_.boot.empty() || state_.boot != boot_id()) return false;
    auto process = engine::WatchedProcess::open(state_.pid);
    if (!process || process->has_ended()) return false;
    const bool same = state_.start_time != 0 ? process->start_time() == state_.start_time
                                             : process->start_time() >= state_.not_before && looks_restored();
    if (!same) return false;
    process_.emplace(std::move(*process));
    events_.tell("adopted", fmt::format("process {} runs since an earlier guard: it is guarded again", state_.pid),
                 "pid", state_.pid);
    return true;
  }

  /// An earlier guard was killed while it restored: is what has the job's pid the job?
  bool looks_restored() {
    auto images = folder_.good_images(state_.over, context_.progress);
    auto newest = images && !images->empty() ? store::read_manifest(images->front())
                                             : Result<store::Manifest>(Error(Code::kNotFound, "", ""));
    auto words = io::read_file(fmt::format("/proc/{}/cmdline", state_.pid), uint64_t{16} << 20);
    if (!newest || !words) return false;
    std::string wanted;
    for (const std::string& word : newest->tree.root().arguments) wanted += word + '\0';
    return *words == wanted;
  }

  Result<void> forget_images() {
    CKPT_TRY_ASSIGN(const std::vector<schedule::KnownSave> saves, images_in(folder_.path()));
    for (const schedule::KnownSave& save : saves) state_.over = std::max(state_.over, save.step.value_or(0));
    return write_guard_state(folder_.path(), state_);
  }

  static uint64_t own_start_time() {
    auto self = engine::WatchedProcess::open(::getpid());
    return self ? self->start_time() : 0;
  }

  Result<void> remember(int pid, uint64_t start_time) {
    state_.command = flags_.command;
    state_.boot = boot_id();
    state_.pid = pid;
    state_.start_time = start_time;
    state_.not_before = own_start_time();
    return write_guard_state(folder_.path(), state_);
  }

  /// It waits until it is known to be the job: should this process be killed before, it ends.
  Result<void> start_command() {
    CKPT_TRY_ASSIGN(auto ends, make_pipe());
    auto& [theirs, ours] = ends;
    std::vector<char*> words;
    for (const std::string& word : flags_.command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const pid_t child = ::fork();
    if (child < 0) return sys_error(request_.program, "cannot be started");
    if (child == 0) {
      ours.reset();
      ::setsid();
      char go = 0;
      if (::read(theirs.get(), &go, 1) != 1) ::_exit(exit_code(Code::kInterrupted));
      restore_signals();
      sigprocmask(SIG_SETMASK, &signals_.before(), nullptr);
      ::execv(request_.program.c_str(), words.data());
      ::dprintf(STDERR_FILENO, "ckpt: %s: cannot be executed: %s\n", request_.program.c_str(), ::strerror(errno));
      ::_exit(127);
    }
    CKPT_TRY_ASSIGN(engine::WatchedProcess process, engine::WatchedProcess::open(child));
    CKPT_TRY(remember(child, process.start_time()));
    process_.emplace(std::move(process));
    const char go = 1;
    if (::write(ours.get(), &go, 1) != 1) return sys_error(request_.program, "cannot be started");
    events_.tell("started", fmt::format("started {} as process {}", escape_for_terminal(flags_.command.front()), child),
                 "pid", child);
    return {};
  }

  Result<void> restore(const std::vector<fs::path>& images) {
    CKPT_TRY_ASSIGN(const store::Manifest newest, store::read_manifest(images.front()));
    CKPT_TRY(remember(newest.tree.root().pid, 0));
    auto restored = restore_newest(images, flags_.job, signals_, context_.progress);
    if (!restored) {
      state_.pid = 0;
      CKPT_TRY(write_guard_state(folder_.path(), state_));
      return std::move(restored.error()).with_hint("--fresh starts the program anew and leaves the images alone");
    }
    CKPT_TRY_ASSIGN(engine::WatchedProcess process, engine::WatchedProcess::open(restored->pid));
    CKPT_TRY(remember(restored->pid, process.start_time()));
    process_.emplace(std::move(process));
    events_.tell(
        "restored",
        fmt::format("process {} goes on from {}", restored->pid, escape_for_terminal(restored->image.string())), "pid",
        restored->pid, "image", restored->image.string());
    return {};
  }

  // --- while it runs -------------------------------------------------------------------------------------------------

  /// Why the job has to make way, in words; empty: it need not. What is none of that is handed on to it.
  std::string take_signals() {
    std::string why;
    while (const int signal = signals_.next()) {
      if (signal == SIGTERM || signal == SIGUSR1 || signal == SIGUSR2)
        why = signal_name(signal);
      else if (signal != SIGCHLD && process_)
        process_->signal(signal);
    }
    if (context_.cancel.requested() && why.empty() && !cancel_seen_) why = "a signal";
    cancel_seen_ = true;  // it came before the signals were taken
    reap_strangers({process_ ? process_->pid() : 0, background_ ? background_->pid() : 0, notice_.pid()});
    return why;
  }

  std::optional<uint64_t> patience() const {
    std::optional<uint64_t> out = background_ ? std::nullopt : timer_.wait_us(monotonic_us());
    if (notice_.has_to_look()) out = std::min(out.value_or(kTick), kTick);
    return out;
  }

  // --- images --------------------------------------------------------------------------------------------------------

  Result<CkptRun> start_next(const char* verb) {
    CKPT_TRY_ASSIGN(next_, next_image(process_->pid()));
    return start_run(verb, process_->pid(), next_);
  }

  void start_image() {
    timer_.begun(monotonic_us());
    auto run = start_next("pre-dump");
    if (run)
      background_.emplace(std::move(*run));
    else
      tell_failed(process_->pid(), run.error());
  }

  /// Of an image made beside the job.
  /// Whether there is a new one.
  bool look_after_image() {
    const std::optional<int> code = background_->finished();
    if (!code) return false;
    if (*code == 0)
      tell_saved("saved", background_->document());
    else if (!process_->has_ended())
      tell_failed(process_->pid(), background_->error());
    background_.reset();
    return *code == 0;
  }

  void tell_saved(const char* event, const std::string& document) {
    const ImageFigures figures = figures_of(document);
    events_.tell(event, text_of(next_, figures), "pid", process_->pid(), "image", next_.dir.string(), "parent",
                 figures.fell_back.empty() ? next_.prev.string() : "", "fell_back", figures.fell_back, "stall_us",
                 figures.stall_us, "bytes", figures.bytes);
  }

  // --- how it ends ---------------------------------------------------------------------------------------------------

  /// Waits for it until then; told to stop at that time it lets the job go.
  bool finished_before(CkptRun& run, uint64_t until_us) {
    for (;;) {
      if (run.finished()) return true;
      const uint64_t now = monotonic_us();
      if (now >= until_us) break;
      wait(-1, until_us - now);
      (void)take_signals();  // whoever says it twice is not served twice
    }
    run.stop();
    while (!run.finished()) wait(-1, std::nullopt), (void)take_signals();
    return false;
  }

  /// The job becomes an image within the grace time, and ends; or goes on to its own end.
  Result<void> make_way(const std::string& why) {
    const uint64_t begun = monotonic_us();
    // What is left of the grace time is for letting go of the job, and for whatever ends this process then.
    const uint64_t until = begun + request_.grace_us - std::min<uint64_t>(request_.grace_us / 10, 2'000'000);
    events_.tell("notice",
                 fmt::format("{}: the job becomes an image within {}", why, format_duration(request_.grace_us)), "pid",
                 process_->pid(), "why", why, "grace_us", request_.grace_us);
    // One that is being made already is what the last one will lean on, if it does not take too long.
    if (background_) {
      (void)finished_before(*background_, begun + request_.grace_us / 2);
      (void)look_after_image();  // no time for retention now
    }
    auto run = start_next("dump");
    if (!run) return give_way(run.error());
    background_.emplace(std::move(*run));
    const bool in_time = finished_before(*background_, until);
    const std::optional<int> code = background_->finished();
    if (code == 0) return finish_checkpointed(monotonic_us() - begun);
    Error error = in_time ? background_->error()
                          : Error(Code::kBusy, next_.dir.string(),
                                  fmt::format("did not fit into {}", format_duration(request_.grace_us)));
    background_.reset();
    if (process_->has_ended()) return finish_ended();
    return give_way(error);
  }

  Result<void> finish_checkpointed(uint64_t us) {
    const std::string document = background_->document();
    background_.reset();
    (void)process_->end();  // it was ended by the dump: reaped
    tell_saved("checkpointed", document);
    state_.pid = 0;
    // The image is complete, whatever becomes of this file: a number in it counts with its start time only.
    if (auto written = write_guard_state(folder_.path(), state_); !written)
      context_.progress.note(written.error().text());
    context_.exit_status = flags_.status;
    const bool requeued = request_.slurm_job.empty() || requeue(request_.slurm_job, signals_.before());
    remove_superfluous();
    events_.tell("ended",
                 fmt::format("the job has made way after {}{}", format_duration(us),
                             requeued ? fmt::format(": exit code {}", flags_.status) : "; it was not queued again"),
                 "pid", process_->pid(), "exit_code", requeued ? flags_.status : exit_code(Code::kPartial), "signal",
                 std::optional<int>(), "checkpointed", true, "duration_us", us);
    if (requeued) return {};
    return fail(Code::kPartial, "scontrol requeue " + request_.slurm_job, "failed; the image is complete");
  }

  /// No image: what is there is what the next start has. The job is told to end by itself, as it would be without a
  /// guard.
  Result<void> give_way(const Error& error) {
    tell_failed(process_->pid(), error);
    auto images = folder_.good_images(state_.over, context_.progress);
    const std::string newest = images && !images->empty() ? images->front().string() : "";
    events_.tell("not-checkpointed",
                 newest.empty()
                     ? "there is no image to go on from; the job gets SIGTERM"
                     : fmt::format("the next start goes on from {}; the job gets SIGTERM", escape_for_terminal(newest)),
                 "pid", process_->pid(), "image", newest);
    told_to_end_ = true;
    process_->signal(SIGTERM);
    while (!process_->has_ended()) {
      wait(process_->fd(), std::nullopt);
      (void)take_signals();
    }
    return finish_ended();
  }

  Result<void> finish_ended() {
    background_.reset();
    const std::optional<engine::ProcessEnd> end = process_->end();
    std::optional<int> code, signal;
    if (end && end->signal != 0)
      signal = end->signal;
    else if (end)
      code = end->code;
    state_.pid = 0;
    // One that ended well is over, and the next start begins anew; not one that was told to end before it was done.
    if (code == 0 && !told_to_end_)
      CKPT_TRY(forget_images());
    else
      CKPT_TRY(write_guard_state(folder_.path(), state_));
    events_.tell("ended",
                 !end     ? fmt::format("process {} has ended; nobody can say how", process_->pid())
                 : signal ? fmt::format("process {} was ended by signal {}", process_->pid(), *signal)
                          : fmt::format("process {} has ended with exit code {}", process_->pid(), *code),
                 "pid", process_->pid(), "exit_code", code, "signal", signal, "checkpointed", false, "duration_us",
                 uint64_t{0});
    if (!end) {
      return fail(Code::kUnsupported, fmt::format("process {}", process_->pid()),
                  "has ended, and before Linux 6.15 nobody but the guard that started it is told how");
    }
    context_.exit_status = end->shell_status();
    return {};
  }

  const GuardFlags& flags_;
  const GuardRequest& request_;
  GuardState state_;
  schedule::SaveTimer timer_;
  std::optional<engine::WatchedProcess> process_;
  std::optional<CkptRun> background_;  ///< an image that is being made
  ImageFolder::Next next_;             ///< where
  bool told_to_end_ = false;           ///< since no image of it could be made
  GuardNotice notice_;
  bool cancel_seen_ = false;
};

Result<GuardRequest> read_guard_request(const GuardFlags& flags) {
  GuardRequest out;
  CKPT_TRY_ASSIGN(out.grace_us, parse_duration(flags.grace, "--grace"));
  if (out.grace_us == 0) return fail(Code::kUsage, "--grace", "has to be longer than nothing");
  if (!flags.every.empty()) {
    CKPT_TRY_ASSIGN(out.period_us, parse_duration(flags.every, "--every"));
    if (out.period_us < 1000) return fail(Code::kUsage, "--every", "has to be a millisecond at least");
  }
  if (flags.requeue) {
    const char* job = std::getenv("SLURM_JOB_ID");
    if (job == nullptr || *job == 0)
      return fail(Code::kUsage, "--requeue", "is for jobs of Slurm: SLURM_JOB_ID is not set");
    out.slurm_job = job;
  }
  CKPT_TRY_ASSIGN(out.program, find_program(flags.command.front()));
  return out;
}

Result<void> run_guard(Context& context, const GuardFlags& flags) {
  CKPT_TRY_ASSIGN(const GuardRequest request, read_guard_request(flags));
  CKPT_TRY_ASSIGN(SignalQueue signals, SignalQueue::take({SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP}));
  CKPT_TRY_ASSIGN(ImageFolder folder, ImageFolder::open(flags.dir));
  folder.remove_staging();
  CKPT_TRY_ASSIGN(GuardState state, read_guard_state(folder.path()));
  // What is restored becomes a child of this process, which is told of its end on any kernel.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return Guarded(context, flags, request, std::move(folder), std::move(signals), std::move(state)).run();
}

}  // namespace

Command::Run add_guard(VerbOptions& app) {
  auto flags = std::make_shared<GuardFlags>();
  app.add_option("-f,--images-dir,-D,--dir", flags->dir, "The folder of the job's images, made if need be").required();
  app.add_option("--grace", flags->grace, "From a notice to the end of this node's patience (default 30s)")
      .type_name("TIME");
  app.add_option("--every", flags->every,
                 "Also an image every so often: the last one copies only what was written since")
      .type_name("TIME");
  app.add_option("--full-every", flags->full_every, "The most images that one may lean on, itself counted (default 24)")
      .in_range(1, 10'000)
      .type_name("N");
  add_retention_flags(app, flags->rules);
  app.add_option("--notice-file", flags->notice_file, "A file whose appearance is a notice").type_name("FILE");
  app.add_option("--notice", flags->notice, "A shell command whose end with exit code 0 is a notice").type_name("CMD");
  app.add_option("--status", flags->status, "The exit code once the job has become an image (default 75)")
      .in_range(0, 255)
      .type_name("N");
  app.add_flag("--requeue", flags->requeue, "Have Slurm queue the job again then: scontrol requeue $SLURM_JOB_ID");
  app.add_flag("--fresh", flags->fresh, "Start the program anew, whatever images there are");
  add_job_flags(app, flags->job);
  app.add_option("COMMAND", flags->command, "After --: the program and its arguments").required();
  return [flags](Context& context) { return run_guard(context, *flags); };
}

}  // namespace ckpt::cli
