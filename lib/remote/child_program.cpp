#include "lib/remote/child_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/unique_fd.h"
#include "lib/remote/program_keeper.h"

extern char** environ;

namespace ckpt::remote {

namespace {

constexpr size_t kSaid = 2000;
constexpr int kTickMs = 200;                 ///< how soon an interrupt is seen
constexpr uint64_t kAfterEndUs = 2'000'000;  ///< for what the program has left running with its stdout

Result<UniqueFd> make_input(ByteSpan content, const std::string& subject) {
  UniqueFd out(::memfd_create("ckpt-input", MFD_CLOEXEC));
  if (!out) return sys_error(subject, "cannot make a file in memory");
  CKPT_TRY(io::write_all(out.get(), content, subject));
  return out;
}

/// The destructor ends it with its group: also what it has left running.
class Child {
 public:
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    kept_.reset();  // before its number can be another's
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  Result<void> start(const std::vector<std::string>& words, int in, int out, int err) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&how);
    ::posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
    sigset_t none, all;
    sigemptyset(&none), sigfillset(&all);
    ::posix_spawnattr_setsigmask(&how, &none);
    ::posix_spawnattr_setsigdefault(&how, &all);
    ::posix_spawnattr_setpgroup(&how, 0);
    ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const int error = ::posix_spawnp(&pid_, arguments[0], &files, &how, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&how);
    if (error != 0) {
      pid_ = 0;
      // Not kNotFound, which would say that there is nothing in the place.
      return std::move(sys_error(error, words[0], "cannot be started")).with_code(Code::kUnsupported);
    }
    kept_.emplace(pid_);
    return {};
  }

  /// Whether it has ended; with that its status. It is waited for by the destructor alone: until then nobody else can
  /// get the number of its group.
  Result<bool> has_ended(int& status, const std::string& subject) const {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
      return errno == EINTR ? Result<bool>(false) : sys_error(subject, "cannot be waited for");
    if (info.si_pid == 0) return false;
    status = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
    return true;
  }

 private:
  pid_t pid_ = 0;
  std::optional<KeptGroup> kept_;
};

std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) text.replace(at, 1, "; ");
  return text;
}

class Run {
 public:
  Run(const ProgramCall& call, const Cancel* cancel) : call_(call), cancel_(cancel), name_(call.words[0]) {}

  Result<ProgramEnd> run() {
    CKPT_TRY_ASSIGN(PipeEnds out, make_pipe(name_));
    CKPT_TRY_ASSIGN(PipeEnds err, make_pipe(name_));
    UniqueFd made;
    if (call_.input_file < 0) {
      CKPT_TRY_ASSIGN(made, make_input(call_.input, name_));
    }
    in_ = call_.input_file < 0 ? made.get() : call_.input_file;
    if (::lseek(in_, 0, SEEK_SET) != 0) return sys_error(name_, "cannot be given its input");
    CKPT_TRY(child_.start(call_.words, in_, out.write.get(), err.write.get()));
    out.write.reset(), err.write.reset();
    out_ = std::move(out.read), err_ = std::move(err.read);
    CKPT_TRY(go_on());
    return ProgramEnd{status_, one_line(std::move(said_))};
  }

 private:
  Result<void> go_on() {
    Stopwatch silent, ended;
    for (bool has_ended = false; !has_ended || out_ || err_;) {
      if (cancel_ != nullptr) CKPT_TRY(cancel_->check());
      std::array<pollfd, 2> fds = {{{out_ ? out_.get() : -1, POLLIN, 0}, {err_ ? err_.get() : -1, POLLIN, 0}}};
      // Once both are closed only the end is left to wait for.
      const int wait = out_ || err_ ? kTickMs : 5;
      if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) return sys_error(name_, "cannot be waited for");
      bool heard = false;
      if (fds[0].revents != 0) CKPT_TRY(take(out_, heard, [&](ByteSpan bytes) { return call_.output(bytes); }));
      if (fds[1].revents != 0) CKPT_TRY(take(err_, heard, [&](ByteSpan bytes) { return keep(bytes); }));
      if (heard || has_read()) silent = Stopwatch();
      if (!has_ended) {
        CKPT_TRY_ASSIGN(has_ended, child_.has_ended(status_, name_));
        if (has_ended) ended = Stopwatch();
      } else if (!heard && ended.elapsed_us() > kAfterEndUs) {
        // Something that it has started has its stdout.
        return call_.to_the_end && out_ ? fail(Code::kIo, name_, "has ended, and something that it has started goes on")
                                        : Result<void>();
      }
      if (!has_ended && silent.elapsed_us() > call_.silence_s * 1'000'000)
        return fail(Code::kIo, name_, "was silent for " + std::to_string(call_.silence_s) + " s, and was ended" +
                                          (said_.empty() ? "" : ": " + one_line(said_)));
    }
    return {};
  }

  /// Since it was asked last: both have the same position in the file.
  bool has_read() {
    const off_t at = ::lseek(in_, 0, SEEK_CUR);
    return at >= 0 && std::exchange(position_, at) != at;
  }

  template <class Each>
  Result<void> take(UniqueFd& fd, bool& heard, Each each) {
    const ssize_t n = ::read(fd.get(), buffer_.data(), buffer_.size());
    if (n < 0 && errno == EINTR) return {};
    if (n < 0) return sys_error(name_, "cannot be read from");
    if (n == 0) {
      fd.reset();
      return {};
    }
    heard = true;
    return each(ByteSpan(buffer_).first(static_cast<size_t>(n)));
  }

  Result<void> keep(ByteSpan bytes) {
    said_ += as_text(bytes);
    if (said_.size() > kSaid) said_.erase(0, said_.size() - kSaid);
    return {};
  }

  const ProgramCall& call_;
  const Cancel* cancel_;
  const std::string& name_;
  Child child_;
  int in_ = -1;
  off_t position_ = 0;
  UniqueFd out_, err_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(64 << 10);
  std::string said_;
  int status_ = 0;
};

}  // namespace

Result<ProgramEnd> run_program(const ProgramCall& call, const Cancel* cancel) { return Run(call, cancel).run(); }

}  // namespace ckpt::remote
