#include "lib/state/landlock/capture.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
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

struct Ids {
  uint32_t uid = 0, gid = 0;
};

bool take_ids(const Ids& ids) {
  if (::syscall(SYS_setresgid, ids.gid, ids.gid, ids.gid) != 0) return false;
  if (::syscall(SYS_setresuid, ids.uid, ids.uid, ids.uid) != 0) return false;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2] = {};
  return ::syscall(SYS_capset, &header, none) == 0;
}

/// Who may not be dumped is looked into by nobody.
bool become(const Ids& ids) { return take_ids(ids) && ::syscall(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0) == 0; }

constexpr size_t kMostChildren = 16;
constexpr const char* kOutsider = "ckpt-outsider";
constexpr int kChannel = STDERR_FILENO + 1;

/// Of another user than ckpt: whoever has these ids may look into it, so nothing of ckpt's stays, first of all its
/// memory. Does not return where the process is no longer fit for the maker's answer.
void execute_outsider(int channel, const Ids& ids) {
  if (channel != kChannel) ::syscall(SYS_dup3, channel, kChannel, 0);
  else ::syscall(SYS_fcntl, channel, F_SETFD, 0);
  ::syscall(SYS_close_range, kChannel + 1, ~0u, 0);
  ::syscall(SYS_close_range, STDIN_FILENO, STDERR_FILENO, 0);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) ::syscall(SYS_open, "/dev/null", O_RDWR, 0);
  const char* const arguments[] = {kOutsider, nullptr};
  const char* const environment[] = {nullptr};
  // Not to be dumped, so not to be looked into, until it is another program.
  if (take_ids(ids)) ::syscall(SYS_execve, "/proc/self/exe", arguments, environment);
  const int32_t none = 0;
  ::syscall(SYS_write, kChannel, &none, sizeof none);
  ::syscall(SYS_exit_group, 1);
}

/// In the maker's process, with plain system calls: a child for each pair of ids that comes, which answers with its
/// number, or 0.
void make_children(int channel) {
  std::array<long, kMostChildren> made{};
  const long own = ::syscall(SYS_getuid);
  size_t count = 0;
  Ids ids;
  while (count < kMostChildren && ::syscall(SYS_read, channel, &ids, sizeof ids) == sizeof ids) {
    const long pid = ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
      if (ids.uid != own) execute_outsider(channel, ids);
      int32_t answer =
          ids.uid == own && become(ids) ? static_cast<int32_t>(::syscall(SYS_getpid)) : 0;
      ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
      if (::syscall(SYS_write, channel, &answer, sizeof answer) != sizeof answer) ::syscall(SYS_exit_group, 1);
      ::syscall(SYS_close, channel);
      for (;;) ::syscall(SYS_pause);
    }
    const int32_t none = 0;
    if (pid > 0) made[count++] = pid;
    else ::syscall(SYS_write, channel, &none, sizeof none);
  }
  for (size_t i = 0; i < count; ++i) {
    ::syscall(SYS_kill, made[i], SIGKILL);
    ::syscall(SYS_wait4, made[i], nullptr, 0, nullptr);
  }
}

/// The namespaces in which ckpt's children have numbers and rights; nothing where those are not ckpt's own.
std::optional<std::pair<std::string, std::string>> namespaces_of_children() {
  const int own = ::getpid();
  auto pid = proc::read_link(own, "ns/pid"), born = proc::read_link(own, "ns/pid_for_children");
  auto user = proc::read_link(own, "ns/user");
  if (!pid || !born || !user || *pid != *born) return std::nullopt;
  return std::pair(std::move(*pid), std::move(*user));
}

bool is_in(int process, const std::optional<std::pair<std::string, std::string>>& namespaces) {
  auto pid = proc::read_link(process, "ns/pid"), user = proc::read_link(process, "ns/user");
  return namespaces && pid && user && *pid == namespaces->first && *user == namespaces->second;
}

}  // namespace

bool is_outsider(int argc, const char* const* argv) { return argc == 1 && std::strcmp(argv[0], kOutsider) == 0; }

void wait_as_outsider() {
  const auto number = static_cast<int32_t>(::getpid());
  if (::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0 || ::write(kChannel, &number, sizeof number) != sizeof number)
    ::_exit(1);
  // What comes on it is for others.
  pollfd hang_up{kChannel, 0, 0};
  while (::poll(&hang_up, 1, -1) < 0 && errno == EINTR) {
  }
  ::_exit(0);
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

int OutsiderMaker::make(uint32_t uid, uint32_t gid) {
  const Ids ids{uid, gid};
  int32_t number = 0;
  if (!channel_ || ::send(channel_.get(), &ids, sizeof ids, MSG_NOSIGNAL) != sizeof ids) return 0;
  ssize_t got = 0;
  while ((got = ::read(channel_.get(), &number, sizeof number)) < 0 && errno == EINTR) {
  }
  return got == sizeof number ? number : 0;
}

Outsiders::Outsiders(const Inventory& running, OutsiderMaker& maker) : asks_(proc::has_landlock()) {
  if (!asks_) return;
  bool all = true;
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
    if (is_new) child->second = maker.make(leader.uid[0], leader.gid[0]);
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

Result<bool> settle_landlock(int pid) {
  CKPT_TRY_ASSIGN(const UniqueFd pidfd, proc::open_pidfd(pid));
  auto found = proc::is_in_landlock_domain(pid, pidfd.get());
  if (!found && found.error().code == Code::kNotFound) return std::move(found).error();
  if (!found) return false;
  if (*found) return fail(Code::kUnsupported, "process " + proc::describe_pid(pid), kLandlock);
  return true;
}

}  // namespace ckpt::capture
