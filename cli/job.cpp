#include "cli/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/dump_flags.h"
#include "cli/inherited_signals.h"
#include "cli/retention.h"
#include "cli/saves.h"
#include "lib/base/io.h"
#include "lib/base/signals.h"
#include "lib/store/remove.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMostOutput = uint64_t{16} << 20;

Error child_error(const std::string& text, int status) {
  // Its last line is the error; a run that was killed has written none.
  const size_t end = text.find_last_not_of('\n');
  const size_t start = end == std::string::npos ? std::string::npos : text.rfind('\n', end);
  const std::string line = end == std::string::npos ? "" : text.substr(start == std::string::npos ? 0 : start + 1);
  const auto doc = nlohmann::json::parse(line, nullptr, false);
  Error out(Code::kBug, "",
            fmt::format("ckpt ended with {}", WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                                                  : fmt::format("exit code {}", WEXITSTATUS(status))));
  if (!doc.is_object() || doc.value("schema", "") != "ckpt.error/1") {  // of a process that knew nothing of --json
    for (int code = static_cast<int>(Code::kInterrupted); WIFEXITED(status) && code >= 0; --code) {
      if (exit_code(static_cast<Code>(code)) == WEXITSTATUS(status)) out.code = static_cast<Code>(code);
    }
    std::istringstream lines(text);
    for (std::string one; std::getline(lines, one);) out.causes.push_back(one);
    return out;
  }
  const std::string kind = doc.value("kind", "");
  for (int code = 0; code <= static_cast<int>(Code::kInterrupted); ++code) {
    if (code_name(static_cast<Code>(code)) == kind) out.code = static_cast<Code>(code);
  }
  out.message = doc.value("message", "");
  if (doc.contains("hint") && doc["hint"].is_string()) out.hint = doc["hint"];
  if (doc.contains("target_state") && doc["target_state"].is_string()) out.target_state = doc["target_state"];
  return out;
}

Result<UniqueFd> scratch_file(const char* name) {
  UniqueFd out(::memfd_create(name, MFD_CLOEXEC));
  if (!out) return sys_error(name, "cannot be made");
  return out;
}

std::string content(const UniqueFd& file) {
  if (::lseek(file.get(), 0, SEEK_SET) != 0) return "";
  return io::read_all(file.get(), kMostOutput, "output of ckpt").value_or("");
}

}  // namespace

void Events::print(const std::string& line) {
  out_.data(line);
  std::fflush(stdout);
}

Result<SignalQueue> SignalQueue::take(const std::vector<int>& signals) {
  SignalQueue out;
  sigset_t all;
  sigemptyset(&all);
  sigaddset(&all, SIGCHLD);
  for (int signal : signals) {
    if (!is_ignored(signal)) sigaddset(&all, signal);
  }
  sigprocmask(SIG_BLOCK, &all, &out.before_);
  out.fd_.reset(::signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!out.fd_) {
    sigprocmask(SIG_SETMASK, &out.before_, nullptr);
    return sys_error("signalfd", "cannot be made");
  }
  return out;
}

SignalQueue::~SignalQueue() {
  if (fd_) sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalQueue::next() {
  signalfd_siginfo info{};
  const ssize_t got = ::read(fd_.get(), &info, sizeof info);
  return got == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

Result<CkptRun> CkptRun::start(const std::vector<std::string>& arguments, const SignalQueue& signals) {
  CkptRun out;
  CKPT_TRY_ASSIGN(out.out_, scratch_file("ckpt-out"));
  CKPT_TRY_ASSIGN(out.err_, scratch_file("ckpt-err"));
  std::vector<std::string> words = {"ckpt"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  words.insert(words.end(), {"--json", "--progress", "none"});
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t parent = ::getpid();
  out.pid_ = ::fork();
  if (out.pid_ < 0) return sys_error("ckpt " + arguments.front(), "cannot be started");
  if (out.pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(out.out_.get(), STDOUT_FILENO);
    ::dup2(out.err_.get(), STDERR_FILENO);
    restore_signals();  // a request to stop that is waiting would be lost in a handler of ours
    sigprocmask(SIG_SETMASK, &signals.before(), nullptr);
    ::execv("/proc/self/exe", pointers.data());
    ::_exit(exit_code(Code::kBug));
  }
  return out;
}

CkptRun::CkptRun(CkptRun&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      status_(other.status_),
      out_(std::move(other.out_)),
      err_(std::move(other.err_)) {}

CkptRun::~CkptRun() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGTERM);
  while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
}

std::optional<int> CkptRun::finished() {
  if (pid_ >= 0) {
    if (::waitpid(pid_, &status_, WNOHANG) != pid_) return std::nullopt;
    pid_ = -1;
  }
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : exit_code(Code::kBug);
}

void CkptRun::stop() {
  if (pid_ >= 0) ::kill(pid_, SIGTERM);
}

std::string CkptRun::document() { return content(out_); }
Error CkptRun::error() { return child_error(content(err_), status_); }

Result<ImageFolder> ImageFolder::open(const fs::path& path) {
  ImageFolder out;
  std::vector<fs::path> made;
  CKPT_TRY(io::make_folders(path, made));
  std::error_code ec;
  if (!made.empty()) fs::permissions(path, fs::perms::owner_all, ec);
  out.path_ = fs::canonical(path, ec);
  if (ec) return sys_error(ec.value(), path.string(), "cannot be opened");
  if (store::ImageReader::looks_like_image(out.path_))
    return fail(Code::kUsage, path.string(), "is an image: a folder for many is wanted");
  CKPT_TRY_ASSIGN(out.lock_, io::open_file(out.path_, O_RDONLY | O_DIRECTORY));
  if (::flock(out.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return fail(Code::kBusy, path.string(), "is another watch's or guard's already");
    return sys_error(path.string(), "cannot be locked");
  }
  return out;
}

namespace {

/// Their numbers are ours.
bool is_newer(const schedule::KnownSave& a, const schedule::KnownSave& b) {
  return schedule::is_newer(a, b, schedule::Order::kNumber);
}

}  // namespace

Result<ImageFolder::Next> ImageFolder::next(int pid, uint64_t chain) const {
  CKPT_TRY_ASSIGN(std::vector<schedule::KnownSave> saves, images_in(path_));
  std::vector<std::string> names;
  std::error_code ec;
  for (fs::directory_iterator it(path_, ec), end; !ec && it != end; it.increment(ec))
    names.push_back(it->path().filename().string());
  if (ec) return sys_error(ec.value(), path_.string(), "cannot be listed");
  const auto newest = std::min_element(saves.begin(), saves.end(), is_newer);
  Next out{path_ / schedule::next_name(names), {}};
  if (newest == saves.end() || schedule::chain_length(saves, newest->name) >= chain) return out;
  auto manifest = store::read_manifest(path_ / newest->name);
  if (manifest && manifest->tree.root().pid == pid && check_image(path_ / newest->name))
    out.prev = path_ / newest->name;
  return out;
}

Result<std::vector<fs::path>> ImageFolder::good_images(uint64_t above, ProgressSink& notes) const {
  CKPT_TRY_ASSIGN(std::vector<schedule::KnownSave> saves, images_in(path_));
  std::sort(saves.begin(), saves.end(), is_newer);
  std::vector<fs::path> out;
  for (const schedule::KnownSave& save : saves) {
    if (save.step.value_or(0) <= above) continue;
    Result<void> good = check_image(path_ / save.name);
    if (good)
      out.push_back(path_ / save.name);
    else
      notes.note("skipped " + good.error().text());
  }
  return out;
}

void ImageFolder::remove_staging() const { (void)store::remove_staging({path_}, false).has_value(); }

std::vector<std::string> JobFlags::for_dump() const {
  std::vector<std::string> out = for_restore();
  const std::pair<bool, const char*> flags[] = {{tcp_established, "--tcp-established"},
                                                {tcp_close, "--tcp-close"},
                                                {ext_unix_sk, "--ext-unix-sk"},
                                                {no_compress, "--no-compress"}};
  for (const auto& [given, name] : flags) {
    if (given) out.emplace_back(name);
  }
  if (!external_memory.empty()) out.insert(out.end(), {"--external-memory", external_memory});
  if (!hash.empty()) out.insert(out.end(), {"--hash", hash});
  const GpuFlags usual;
  if (gpu.policy != usual.policy) out.insert(out.end(), {"--gpu", gpu.policy});
  if (gpu.delta != usual.delta) out.insert(out.end(), {"--delta", gpu.delta});
  if (gpu.lock_timeout_s != usual.lock_timeout_s)
    out.insert(out.end(), {"--gpu-lock-timeout", fmt::format("{}", gpu.lock_timeout_s)});
  if (!validate_sample.empty()) out.insert(out.end(), {"--validate-sample", validate_sample});
  return out;
}

std::vector<std::string> JobFlags::for_restore() const {
  std::vector<std::string> out;
  if (shell_job) out.emplace_back("--shell-job");
  if (!external_pipes.empty()) out.insert(out.end(), {"--external-pipes", external_pipes});
  return out;
}

void add_job_flags(VerbOptions& app, JobFlags& flags) {
  app.add_flag("-j,--shell-job", flags.shell_job, "As for dump and restore: terminals and pipes from outside");
  app.add_option("--external-pipes", flags.external_pipes, "As for dump and restore: pipes from outside")
      .one_of({"keep", "null"})
      .type_name("keep|null");
  add_external_memory_flag(app, flags.external_memory);
  const VerbOption established = app.add_flag("--tcp-established", flags.tcp_established, "As for dump");
  app.add_flag("--tcp-close", flags.tcp_close, "As for dump").excludes(established);
  app.add_flag("--ext-unix-sk", flags.ext_unix_sk, "As for dump");
  add_gpu_flag(app, flags.gpu, "As for dump: GPU state");
  add_gpu_lock_timeout_flag(app, flags.gpu);
  add_delta_flag(app, flags.gpu);
  app.add_flag("--no-compress", flags.no_compress, "Store pages as they are");
  app.add_option("--validate-sample", flags.validate_sample, "As for dump").type_name("PART");
  app.add_option("--hash", flags.hash, "What pages are hashed with (default xxh3)")
      .one_of({"xxh3", "sha256"})
      .type_name("xxh3|sha256");
}

namespace {

/// The exit code of `ckpt restore -d`, whose standard streams are ours: the job may take them over.
Result<int> run_restore_of(const fs::path& image, const JobFlags& flags, const SignalQueue& signals) {
  std::vector<std::string> words = {"ckpt", "restore", "-f", image.string(), "-d", "--quiet"};
  for (std::string& more : flags.for_restore()) words.push_back(std::move(more));
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return sys_error("ckpt restore", "cannot be started");
  if (child == 0) {
    restore_signals();
    sigprocmask(SIG_SETMASK, &signals.before(), nullptr);
    ::unsetenv("CKPT_JSON");
    ::execv("/proc/self/exe", pointers.data());
    ::_exit(exit_code(Code::kBug));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : exit_code(Code::kBug);
}

}  // namespace

Result<Restored> restore_newest(const std::vector<fs::path>& images, const JobFlags& flags, const SignalQueue& signals,
                                ProgressSink& notes) {
  for (const fs::path& image : images) {
    CKPT_TRY_ASSIGN(const store::Manifest manifest, store::read_manifest(image));
    CKPT_TRY_ASSIGN(const int code, run_restore_of(image, flags, signals));
    if (code == 0) return Restored{image, manifest.tree.root().pid};
    // Damaged, or a file that it needs is gone: an older one may do. All else is in the way of that one, too.
    if (code != exit_code(Code::kCorrupt) && code != exit_code(Code::kNotFound)) {
      return Error(code == exit_code(Code::kBusy) ? Code::kBusy : Code::kMismatch, image.string(),
                   fmt::format("cannot be restored (exit code {})", code));
    }
    notes.note("skipped " + image.string() + ": it cannot be restored");
  }
  return fail(Code::kNotFound, "images", "none can be restored");
}

}  // namespace ckpt::cli
