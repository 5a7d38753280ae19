#include "lib/state/landlock/capture.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <linux/keyctl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "lib/proc/landlock.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

namespace {

struct Wanted {
  uint32_t uid = 0, gid = 0;
  uint32_t anew = 0;  ///< executed anew, since who has these ids may look into it, and not into ckpt
};

bool drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2] = {};
  return ::syscall(SYS_capset, &header, none) == 0;
}

bool take_ids(const Wanted& wanted) {
  if (::syscall(SYS_setresgid, wanted.gid, wanted.gid, wanted.gid) != 0) return false;
  if (::syscall(SYS_setresuid, wanted.uid, wanted.uid, wanted.uid) != 0) return false;
  return drop_capabilities();
}

constexpr size_t kMostChildren = 16;
constexpr int kPatienceMs = 5000;
constexpr const char* kOutsider = "ckpt-outsider";
constexpr int kAnswer = STDERR_FILENO + 1;

/// In a child, with plain system calls: nothing of ckpt's stays, its terminal, groups, keys and folder included. Comes
/// back where that fails.
void execute_outsider(int answer, const Wanted& wanted) {
  if (answer != kAnswer) ::syscall(SYS_dup3, answer, kAnswer, 0);
  else ::syscall(SYS_fcntl, answer, F_SETFD, 0);
  ::syscall(SYS_close_range, kAnswer + 1, ~0u, 0);
  ::syscall(SYS_close_range, STDIN_FILENO, STDERR_FILENO, 0);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) ::syscall(SYS_open, "/dev/null", O_RDWR, 0);
  ::syscall(SYS_setsid);
  ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr);
  ::syscall(SYS_setgroups, 0, nullptr);
  if (::syscall(SYS_chdir, "/") != 0 || !take_ids(wanted)) return;
  const char* const arguments[] = {kOutsider, nullptr};
  const char* const environment[] = {nullptr};
  // With other ids it is not to be dumped, and so not to be looked into, until it is another program.
  ::syscall(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
  ::syscall(SYS_execve, "/proc/self/exe", arguments, environment);
}

[[noreturn]] void be_outsider(int answer, const Wanted& wanted) {
  if (wanted.anew != 0) {
    execute_outsider(answer, wanted);
    ::syscall(SYS_exit_group, 1);
  }
  // Who may not be dumped is looked into by nobody.
  const bool is_one = take_ids(wanted) && ::syscall(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  const char done = 'y';
  if (!is_one || ::syscall(SYS_write, answer, &done, 1) != 1) ::syscall(SYS_exit_group, 1);
  for (;;) ::syscall(SYS_pause);
}

/// In the maker's process, with plain system calls. Its number once it is one; 0: it is none.
long make_child(int channel, const Wanted& wanted) {
  int ends[2];
  if (::syscall(SYS_pipe2, ends, O_CLOEXEC) != 0) return 0;
  const long pid = ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    ::syscall(SYS_close, channel);
    ::syscall(SYS_close, ends[0]);
    be_outsider(ends[1], wanted);
  }
  ::syscall(SYS_close, ends[1]);
  // It ends without a word where it fails; whoever has its ids may stop it as well.
  pollfd answers{ends[0], POLLIN, 0};
  char done = 'n';
  const bool heard = pid > 0 && ::syscall(SYS_poll, &answers, 1, kPatienceMs) == 1 &&
                     ::syscall(SYS_read, ends[0], &done, 1) == 1 && done == 'y';
  ::syscall(SYS_close, ends[0]);
  if (heard || pid <= 0) return heard ? pid : 0;
  ::syscall(SYS_kill, pid, SIGKILL);
  ::syscall(SYS_wait4, pid, nullptr, 0, nullptr);
  return 0;
}

/// A child for each that is wanted; the answer is its number, or 0.
void make_children(int channel) {
  std::array<long, kMostChildren> made{};
  size_t count = 0;
  Wanted wanted;
  while (::syscall(SYS_read, channel, &wanted, sizeof wanted) == sizeof wanted) {
    const auto pid = static_cast<int32_t>(count < kMostChildren ? make_child(channel, wanted) : 0);
    if (pid != 0) made[count++] = pid;
    if (::syscall(SYS_write, channel, &pid, sizeof pid) != sizeof pid) break;
  }
  for (size_t i = 0; i < count; ++i) {
    ::syscall(SYS_kill, made[i], SIGKILL);
    ::syscall(SYS_wait4, made[i], nullptr, 0, nullptr);
  }
}

/// The namespaces in which ckpt's children, if it may make any, have numbers and rights.
std::optional<std::pair<std::string, std::string>> namespaces_of_children() {
  const int own = ::getpid();
  auto pid = proc::read_link(own, "ns/pid"), user = proc::read_link(own, "ns/user");
  if (!pid || !user) return std::nullopt;
  return std::pair(std::move(*pid), std::move(*user));
}

bool is_in(int process, const std::optional<std::pair<std::string, std::string>>& namespaces) {
  auto pid = proc::read_link(process, "ns/pid"), user = proc::read_link(process, "ns/user");
  return namespaces && pid && user && *pid == namespaces->first && *user == namespaces->second;
}

/// Whether all of the tree may do so anyway.
bool may_look_into_ckpt(const Inventory& running) {
  auto own = proc::read_status(::getpid(), ::getpid());
  if (!own) return false;
  const auto& processes = running.image.processes;
  return std::all_of(processes.begin(), processes.end(), [&](const store::ProcessImage& process) {
    if (process.zombie || process.threads.empty()) return true;
    const store::Thread& leader = process.threads[0];
    return leader.uid[0] == own->uid[0] && (own->cap_permitted & ~leader.cap_permitted) == 0;
  });
}

}  // namespace

bool is_outsider(int argc, const char* const* argv) { return argc == 1 && std::strcmp(argv[0], kOutsider) == 0; }

void wait_as_outsider() {
  // With its maker, who is there as long as somebody reads the answer.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char done = 'y';
  if (!drop_capabilities()) ::_exit(1);  // an execve by root has given all of them back
  if (::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0 || ::write(kAnswer, &done, 1) != 1) ::_exit(1);
  ::close(kAnswer);
  for (;;) ::pause();
}

OutsiderMaker::OutsiderMaker() {
  int ends[2];
  if (!proc::has_landlock() || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  UniqueFd ours(ends[0]), theirs(ends[1]);
  auto become_maker = [&] { return ::syscall(SYS_close, ours.get()) == 0; };
  auto made = proc::WaitingChild::start(become_maker, [&] { make_children(theirs.get()); });
  if (!made) return;
  process_.emplace(std::move(*made));
  channel_ = std::move(ours);
}

OutsiderMaker::~OutsiderMaker() {
  channel_.reset();
  if (process_) process_->join();
}

int OutsiderMaker::make(uint32_t uid, uint32_t gid, bool anew) {
  const Wanted wanted{uid, gid, anew ? 1u : 0u};
  int32_t number = 0;
  if (!channel_ || ::send(channel_.get(), &wanted, sizeof wanted, MSG_NOSIGNAL) != sizeof wanted) return 0;
  ssize_t got = 0;
  while ((got = ::read(channel_.get(), &number, sizeof number)) < 0 && errno == EINTR) {
  }
  return got == sizeof number ? number : 0;
}

Outsiders::Outsiders(const Inventory& running, OutsiderMaker& maker) : asks_(proc::has_landlock()) {
  if (!asks_) return;
  bool all = true;
  const bool anew = !may_look_into_ckpt(running);
  const auto namespaces = namespaces_of_children();
  for (const store::ProcessImage& process : running.image.processes) {
    if (process.zombie || process.threads.empty()) continue;
    const store::Thread& leader = process.threads[0];
    all = all && leader.labels.empty();  // other modules may forbid it as well
    if (!is_in(process.pid, namespaces)) {
      elsewhere_.push_back(process.pid);
      all = false;
      continue;
    }
    auto [child, is_new] = children_.try_emplace({leader.uid[0], leader.gid[0]}, 0);
    if (is_new) child->second = maker.make(leader.uid[0], leader.gid[0], anew);
    all = all && child->second != 0;
  }
  if (!all) proc::prepare_landlock_look();
}

int Outsiders::of(const store::ProcessImage& process, const store::Thread& thread) const {
  if (std::find(elsewhere_.begin(), elsewhere_.end(), process.pid) != elsewhere_.end()) return 0;
  const auto found = children_.find({thread.uid[0], thread.gid[0]});
  return found == children_.end() ? 0 : found->second;
}

LandlockQuestion::LandlockQuestion(proc::CallList& calls, const Outsiders* outsiders,
                                   const store::ProcessImage& process, const store::Thread& thread)
    : asked_(outsiders != nullptr && outsiders->asks()) {
  const int other = asked_ ? outsiders->of(process, thread) : 0;
  has_call_ = other != 0;
  if (has_call_)
    call_ = calls.add("look out of a Landlock domain", SYS_kcmp,
                      {static_cast<uint64_t>(process.pid), static_cast<uint64_t>(other), KCMP_VM, 0, 0});
}

bool is_domains_answer(int64_t compared, bool forbids_more) { return compared == -EPERM && !forbids_more; }

Error in_landlock_domain(int pid) {
  return Error(Code::kUnsupported, "process " + proc::describe_pid(pid), kLandlock);
}

Result<bool> settle_landlock(int pid) {
  CKPT_TRY_ASSIGN(const UniqueFd pidfd, proc::open_pidfd(pid));
  auto found = proc::is_in_landlock_domain(pid, pidfd.get());
  if (!found && found.error().code == Code::kNotFound) return std::move(found).error();
  if (!found) return false;
  if (*found) return in_landlock_domain(pid);
  return true;
}

}  // namespace ckpt::capture
