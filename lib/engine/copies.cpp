#include "lib/engine/copies.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>

#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/threads.h"
#include "lib/engine/pid_namespace.h"
#include "lib/memory/common.h"
#include "lib/store/image.h"

namespace ckpt::engine {

namespace {

constexpr char kMade = 'm', kRuns = 'r', kEnded = 'e', kFailed = 'f';
constexpr size_t kLongestMessage = 60'000;  ///< below what a socket takes at once by default

struct Message {
  char kind = 0;
  std::string text;
};

/// Nothing: the other end is closed, or, without `wait`, nothing is there.
std::optional<Message> receive(int link, bool wait) {
  std::string room(kLongestMessage + 1, '\0');
  ssize_t n = 0;
  while ((n = ::recv(link, room.data(), room.size(), wait ? 0 : MSG_DONTWAIT)) < 0 && errno == EINTR) {
  }
  if (n <= 0) return std::nullopt;
  return Message{room[0], room.substr(1, static_cast<size_t>(n) - 1)};
}

/// An Error as one text and back: code, subject, message, hint, causes, each behind a NUL.
std::string pack(const Error& error) {
  std::string out = std::to_string(static_cast<int>(error.code));
  auto add = [&](const std::string& part) { out += '\0' + part; };
  add(error.subject), add(error.message), add(error.hint);
  for (const std::string& cause : error.causes) add(cause);
  return out.substr(0, kLongestMessage);
}

Error unpack(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == '\0') parts.emplace_back();
    else parts.back() += c;
  }
  constexpr size_t kFixed = 4;
  if (parts.size() < kFixed) parts.resize(kFixed);
  Error out(static_cast<Code>(std::atoi(parts[0].c_str())), parts[1], parts[2]);
  out.hint = parts[3];
  out.causes.assign(parts.begin() + kFixed, parts.end());
  return out;
}

}  // namespace

bool CopyLink::send(char kind, const std::string& text) {
  const std::string message = kind + text.substr(0, kLongestMessage);
  return ::send(link_.get(), message.data(), message.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

Result<void> CopyLink::made(int init) {
  if (!send(kMade, std::to_string(init))) return sys_error("", "the ckpt that makes the copies has ended");
  char go = 0;
  ssize_t n = 0;
  while ((n = ::read(go_.get(), &go, 1)) < 0 && errno == EINTR) {
  }
  if (n == 1) return {};
  return fail(Code::kInterrupted, fmt::format("copy {}", number_), "is not let go: another one cannot be made");
}

void CopyLink::runs(const std::string& report) { (void)send(kRuns, report); }
void CopyLink::ended(const std::string& report) { (void)send(kEnded, report); }
void CopyLink::failed(const Error& error) { (void)send(kFailed, pack(error)); }

/// The processes that make the copies. Dropping it ends them with whatever they have made.
class CopyMakers {
 public:
  explicit CopyMakers(const CopiesRun& run, const Cancel& cancel) : run_(run), cancel_(cancel) {}
  ~CopyMakers() { end_all(); }

  Result<void> make_all() {
    CKPT_TRY_ASSIGN(go_, make_pipe());
    std::fflush(nullptr);
    for (int number = 1; number <= run_.count; ++number) {
      CKPT_TRY(start(number));
      Result<std::string> made = await(makers_.back(), kMade);
      if (!made) return of_copy(std::move(made).error(), number, "made");
      makers_.back().init = std::atoi(made->c_str());
      // It waits to be let go, so the number is still its own.
      makers_.back().held.reset(static_cast<int>(::syscall(SYS_pidfd_open, makers_.back().init, 0)));
      if (!makers_.back().held) return of_copy(sys_error("", "cannot be held on to"), number, "made");
    }
    go_.read.reset();
    return {};
  }

  /// One write: the kernel hands out all of its bytes, or none.
  Result<void> let_go() {
    for (Maker& maker : makers_) {
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(maker.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
        return of_copy(Error(Code::kIo, "", "its ckpt has been ended"), maker.number, "let go");
    }
    CKPT_TRY(cancel_.check());
    return io::write_all(go_.write.get(), as_bytes(std::string(makers_.size(), 'g')), "the copies");
  }

  Result<std::vector<std::string>> await_running() {
    std::vector<std::string> out;
    for (Maker& maker : makers_) {
      Result<std::string> runs = await(maker, kRuns);
      if (!runs) return of_copy(std::move(runs).error(), maker.number, "let go");
      out.push_back(std::move(*runs));
    }
    for (Maker& maker : makers_) maker.init = 0;  // they are on their own
    return out;
  }

  /// Waits for all makers, and passes on to them what is sent to ckpt.
  int supervise() {
    const sigset_t watched = relayed_signals();
    const sigset_t before = block_relayed_signals();
    for (;;) {
      reap(WNOHANG);
      if (std::all_of(makers_.begin(), makers_.end(), [](const Maker& maker) { return maker.pid == 0; })) break;
      siginfo_t info{};
      const int signal = ::sigwaitinfo(&watched, &info);
      // What the terminal sends goes to the whole group, which they are in as well.
      if (signal <= 0 || signal == SIGCHLD || info.si_code == SI_KERNEL) continue;
      for (const Maker& maker : makers_) {
        if (maker.pid != 0) ::kill(maker.pid, signal);
      }
    }
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return first_failure();
  }

  int wait() {
    reap(0);
    return first_failure();
  }

 private:
  struct Maker {
    int number = 0;
    pid_t pid = 0;  ///< 0: has been waited for
    UniqueFd link;
    int init = 0, code = 0;
    UniqueFd held{};  ///< process 1, whose number is another's once it has been waited for
  };

  int first_failure() const {
    const auto bad = std::find_if(makers_.begin(), makers_.end(), [](const Maker& maker) { return maker.code != 0; });
    return bad == makers_.end() ? 0 : bad->code;
  }

  Result<void> start(int number) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      return sys_error("", "cannot make a socket");
    UniqueFd ours(ends[0]), theirs(ends[1]);
    const pid_t pid = ::fork();
    if (pid < 0) return fork_error(errno, fmt::format("copy {}", number), "cannot be made");
    if (pid == 0) {
      // Whoever holds these would keep the others from noticing ckpt's end.
      ours.reset();
      go_.write.reset();
      for (Maker& other : makers_) other.link.reset(), other.held.reset();
      CopyLink link(number, std::move(theirs), std::move(go_.read));
      const int code = run_.make(link);
      std::fflush(nullptr);
      ::_exit(code);
    }
    makers_.push_back({number, pid, std::move(ours)});
    return {};
  }

  /// The next message must be `kind`.
  Result<std::string> await(Maker& maker, char kind) {
    constexpr int kLookMs = 100;
    for (;;) {
      if (kind == kMade) CKPT_TRY(cancel_.check());
      pollfd ready{maker.link.get(), POLLIN, 0};
      if (::poll(&ready, 1, kLookMs) <= 0) continue;
      std::optional<Message> message = receive(maker.link.get(), true);
      if (!message) return Error(Code::kIo, "", "its ckpt has been ended");
      if (message->kind == kFailed) return unpack(message->text);
      if (message->kind == kind) return std::move(message->text);
      return Error(Code::kBug, "", fmt::format("its ckpt says '{}' in the place of '{}'", message->kind, kind));
    }
  }

  Error of_copy(Error error, int number, const char* what) const {
    if (error.code == Code::kInterrupted) return error;
    Error out(error.code, fmt::format("copy {} of {}", number, run_.count),
              fmt::format("cannot be {}, and none of them is there: {}", what, error.text()));
    out.causes = error.causes, out.hint = error.hint;
    return out;
  }

  void reap(int flags) {
    for (Maker& maker : makers_) {
      int status = 0;
      if (maker.pid == 0) continue;
      pid_t got = 0;
      while ((got = ::waitpid(maker.pid, &status, flags)) < 0 && errno == EINTR) {
      }
      if (got == 0) continue;
      maker.pid = 0;
      // How one ended that somebody else has waited for is not known: not well, then.
      maker.code = got < 0 ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      while (auto message = receive(maker.link.get(), false)) {
        if (message->kind == kEnded) run_.ended(maker.number, message->text);
      }
    }
  }

  void end_all() {
    go_.write.reset();  // who waits for it undoes what it has made
    for (const Maker& maker : makers_) {
      if (maker.init > 0 && maker.held) (void)::syscall(SYS_pidfd_send_signal, maker.held.get(), SIGKILL, nullptr, 0);
    }
    for (const Maker& maker : makers_) {
      if (maker.pid != 0 && maker.init == 0) ::kill(maker.pid, SIGTERM);
    }
    reap(0);
  }

  const CopiesRun& run_;
  const Cancel& cancel_;
  PipeEnds go_;
  std::vector<Maker> makers_;
};

Result<int> run_copies(const CopiesRun& run, const Cancel& cancel) {
  CopyMakers makers(run, cancel);
  CKPT_TRY(makers.make_all());
  run.drop();
  CKPT_TRY(makers.let_go());
  run.gone();
  CKPT_TRY_ASSIGN(const std::vector<std::string> reports, makers.await_running());
  run.running(reports);
  return run.detach ? makers.wait() : makers.supervise();
}

Result<CommonPages> read_common_pages(const RestoreOptions& options, ProgressSink& progress, const Cancel& cancel) {
  const store::Trust trust = options.trust ? store::Trust::kAnybody : store::Trust::kOwn;
  CKPT_TRY_ASSIGN(const auto image, store::ImageReader::open_description(options.image, false, trust));
  CKPT_TRY(image->check_pinned_pages());
  CKPT_TRY(image->load_pages());
  CKPT_TRY_ASSIGN(restore::CommonMemory memory, restore::CommonMemory::make(*image, progress, cancel));
  CommonPages out;
  out.bytes = memory.bytes();
  out.memory = std::make_shared<const restore::CommonMemory>(std::move(memory));
  return out;
}

Result<std::string> name_host_after(int copy) {
  if (::unshare(CLONE_NEWUTS) != 0) return sys_error("UTS namespace", "cannot be made");
  char name[65] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return sys_error("hostname", "cannot be read");
  constexpr size_t kLongest = 64;
  const std::string end = fmt::format("-{}", copy);
  std::string out = std::string(name).substr(0, kLongest - end.size()) + end;
  if (::sethostname(out.data(), out.size()) != 0) return sys_error("hostname", "cannot be set");
  return out;
}

Result<void> show_number(const std::filesystem::path& path, int copy) {
  const std::string subject = path.string();
  UniqueFd context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context || ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return sys_error(subject, "cannot make a file system for the number of the copy (fsopen, Linux 5.2)");
  UniqueFd root(::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  if (!root) return sys_error(subject, "cannot make a file system for the number of the copy");
  UniqueFd file(::openat(root.get(), "copy", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (!file || ::fchmod(file.get(), 0444) != 0) return sys_error(subject, "cannot be made for the copy");
  CKPT_TRY(io::write_all(file.get(), as_bytes(fmt::format("{}\n", copy)), subject));
  file.reset();
  UniqueFd tree(::open_tree(root.get(), "copy", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  UniqueFd place(::open(path.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW));
  if (!place) return sys_error(subject, "is to show the number of the copy");
  if (!tree || ::move_mount(tree.get(), "", place.get(), "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0)
    return sys_error(subject, "cannot be made to show the number of the copy");
  return {};
}

Result<void> signal_number(int pid, int signal, int copy) {
  sigval value{};
  value.sival_int = copy;
  if (::sigqueue(pid, signal, value) != 0)
    return sys_error(fmt::format("process {}", pid), fmt::format("cannot be sent signal {}", signal));
  return {};
}

}  // namespace ckpt::engine
