#include "lib/state/files/tracker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/cn_proc.h>
#include <linux/connector.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/fanotify.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/run_folder.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/background.h"
#include "lib/proc/procfs.h"
#include "lib/state/files/tracker_channel.h"
#include "lib/state/mounts/mountinfo.h"

namespace ckpt::state {

namespace {

/// Who has been forked by whom.
Result<UniqueFd> open_forks() {
  UniqueFd out(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_CONNECTOR));
  if (!out) return sys_error("the process connector", "cannot be had");
  constexpr int kRoom = 16 << 20;
  (void)::setsockopt(out.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kRoom, sizeof kRoom);
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK, address.nl_groups = CN_IDX_PROC;
  if (::bind(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return sys_error("the process connector", "cannot be listened to");
  const proc_cn_mcast_op what = PROC_CN_MCAST_LISTEN;
  nlmsghdr head{};
  cn_msg message{};
  message.id = {CN_IDX_PROC, CN_VAL_PROC}, message.len = sizeof what;
  head.nlmsg_len = sizeof head + sizeof message + sizeof what, head.nlmsg_type = NLMSG_DONE;
  std::array<char, sizeof head + sizeof message + sizeof what> ask;
  std::memcpy(ask.data(), &head, sizeof head);
  std::memcpy(ask.data() + sizeof head, &message, sizeof message);
  std::memcpy(ask.data() + sizeof head + sizeof message, &what, sizeof what);
  if (::send(out.get(), ask.data(), ask.size(), 0) < 0) return sys_error("the process connector", "cannot be asked");
  return out;
}

/// The connector tells the numbers of the first pid namespace, and only who is root there.
Result<void> refuse_namespaces() {
  constexpr const char *kFirstPids = "pid:[4026531836]", *kFirstUsers = "user:[4026531837]";
  if (proc::read_link(::getpid(), "ns/pid").value_or("") == kFirstPids &&
      proc::read_link(::getpid(), "ns/user").value_or("") == kFirstUsers)
    return {};
  return fail(Code::kUnsupported, "--track-fs", "works in the first pid and user namespace alone");
}

/// Where nothing is written that lasts.
bool is_kernels_own(const std::string& type) {
  static const std::set<std::string> kOwn = {"proc",    "sysfs",      "cgroup", "cgroup2",     "devpts",  "mqueue",
                                             "debugfs", "securityfs", "bpf",    "binfmt_misc", "tracefs", "autofs"};
  return kOwn.count(type) != 0;
}

/// What another program or host answers for: it may be dead, and hold whoever looks for ever.
bool is_served(const std::string& type) { return type.starts_with("fuse") || type.starts_with("nfs"); }

/// As far as that is known without asking anybody.
bool look_at(int folder, const char* path, int flags, struct statx& out) {
  return ::statx(folder, path, flags | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, &out) == 0;
}

dev_t device_of(const struct statx& st) { return makedev(st.stx_dev_major, st.stx_dev_minor); }

/// Whether a file that is there may have been written since (CLOCK_REALTIME, s): where there are too many to look at,
/// they may.
bool may_have_new_files(const std::string& folder, int64_t since_s) {
  constexpr int kMost = 2000;
  struct statx top{};
  if (!look_at(AT_FDCWD, folder.c_str(), 0, top)) return true;
  std::error_code ec;
  int seen = 0;
  for (std::filesystem::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    struct statx st{};
    if (++seen > kMost || !look_at(AT_FDCWD, it->path().c_str(), AT_SYMLINK_NOFOLLOW, st)) return true;
    if (device_of(st) != device_of(top)) it.disable_recursion_pending();
    else if (S_ISREG(st.stx_mode) && st.stx_ctime.tv_sec >= since_s) return true;
  }
  return static_cast<bool>(ec);
}

/// Fails where the process has ended.
Result<std::vector<capture::MountLine>> mounts_of(const std::string& process) {
  CKPT_TRY_ASSIGN(const std::string text, io::read_file("/proc/" + process + "/mountinfo", 16 << 20));
  return capture::parse_mountinfo(text);
}

class Tracker {
 public:
  static Result<Tracker> open(int root, std::vector<std::string>& unseen);
  /// Until no tracked process is left.
  void serve();

 private:
  Tracker() = default;
  Result<void> watch_mounts(const std::string& process, std::vector<std::string>& unseen);
  bool watch_one(const std::string& point, const std::string& type, std::vector<std::string>& unseen);
  void watch_new_mounts(bool of_own);
  void hear_forks();
  void hear_writes();
  void keep(const fanotify_event_metadata& event);
  void answer();
  bool has_one_of(const std::string& processes) const;
  void forget_deleted();
  bool anybody_lives();

  UniqueFd folder_, socket_, forks_, writes_, mounts_;
  std::string name_;  ///< of the socket
  std::set<int> members_, gone_;  ///< `gone_`: at the last look
  std::map<std::pair<dev_t, ino_t>, UniqueFd> files_;  ///< O_PATH: they know the name, and keep no file that is deleted
  std::set<dev_t> watched_;
  std::set<std::string> served_;  ///< mount points, as /proc/PID/root/PATH where they are in another namespace
  std::set<std::pair<int, uint64_t>> hidden_;  ///< mounts that cannot be looked at, by number and device
  int64_t looked_s_ = 0;          ///< CLOCK_REALTIME of the last look at mounts; 0: the first one
  bool missed_ = false;
};

Result<Tracker> Tracker::open(int root, std::vector<std::string>& unseen) {
  Tracker out;
  out.members_.insert(root);
  CKPT_TRY(refuse_namespaces());
  CKPT_TRY_ASSIGN(out.name_, name_of_tracker(root));
  CKPT_TRY_ASSIGN(out.folder_, open_common_run_folder());
  remove_old_trackers(out.folder_.get());
  CKPT_TRY_ASSIGN(out.forks_, open_forks());
  constexpr unsigned kHow = FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK | FAN_UNLIMITED_QUEUE | FAN_UNLIMITED_MARKS;
  out.writes_ = UniqueFd(::fanotify_init(kHow, O_RDONLY | O_LARGEFILE | O_CLOEXEC | O_NOATIME));
  if (!out.writes_) return sys_error("fanotify", "cannot be had");
  out.mounts_ = UniqueFd(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC));
  CKPT_TRY(out.watch_mounts("self", unseen));
  if (proc::read_link(root, "ns/mnt").value_or("") != proc::read_link(::getpid(), "ns/mnt").value_or(""))
    CKPT_TRY(out.watch_mounts(std::to_string(root), unseen));
  out.looked_s_ = std::time(nullptr);
  CKPT_TRY_ASSIGN(out.socket_, listen_as_tracker(out.folder_.get(), out.name_));
  return out;
}

/// In the mount namespace of a process.
Result<void> Tracker::watch_mounts(const std::string& process, std::vector<std::string>& unseen) {
  CKPT_TRY_ASSIGN(const auto mounts, mounts_of(process));
  const std::string root = process == "self" ? "" : "/proc/" + process + "/root";
  std::map<std::pair<int, uint64_t>, std::string> hidden;
  for (const capture::MountLine& mount : mounts) {
    if (is_kernels_own(mount.type) || watch_one(root + mount.point, mount.type, unseen)) continue;
    const char* why = std::strerror(errno);
    hidden[{mount.id, mount.device}] = fmt::format("{}{} ({}): {}", root, mount.point, mount.type, why);
  }
  if (hidden.empty()) return {};
  // Below another mount; what has gone meanwhile, and what can be seen elsewhere, is not.
  CKPT_TRY_ASSIGN(const auto left, mounts_of(process));
  for (const capture::MountLine& mount : left) {
    const auto found = hidden.find({mount.id, mount.device});
    if (found == hidden.end() || watched_.count(mount.device) != 0) continue;
    if (hidden_.insert(found->first).second) unseen.push_back(found->second);
  }
  return {};
}

/// Later than at the start what has been written there before is missed, unless it can be seen that nothing was.
/// False, with errno: it cannot be looked at.
bool Tracker::watch_one(const std::string& point, const std::string& type, std::vector<std::string>& unseen) {
  const auto say = [&](const char* what) { unseen.push_back(fmt::format("{} ({}): {}", point, type, what)); };
  const bool is_below = std::any_of(served_.begin(), served_.end(), [&](const std::string& one) {
    return point.starts_with(one + "/");
  });
  if (is_served(type) || is_below) {
    if (served_.insert(point).second) say("not watched");
    return true;
  }
  struct statx st{};
  if (!look_at(AT_FDCWD, point.c_str(), 0, st)) return false;
  if (!watched_.insert(device_of(st)).second) return true;
  constexpr unsigned kAll = FAN_MARK_ADD | FAN_MARK_FILESYSTEM;
  constexpr int64_t kCoarseS = 2;
  if (::fanotify_mark(writes_.get(), kAll, FAN_CLOSE_WRITE, AT_FDCWD, point.c_str()) != 0)
    say(std::strerror(errno));
  else if (looked_s_ != 0 && may_have_new_files(point, looked_s_ - kCoarseS)) missed_ = true;
  return true;
}

/// Where one of the processes is, or, `of_own`, this one. What is not seen from here on is missed.
void Tracker::watch_new_mounts(bool of_own) {
  const int64_t now = std::time(nullptr);
  std::vector<std::string> unseen;
  if (of_own) missed_ = !watch_mounts("self", unseen).has_value() || missed_;
  std::set<std::string> done = {proc::read_link(::getpid(), "ns/mnt").value_or("")};
  for (const int pid : members_) {
    auto space = proc::read_link(pid, "ns/mnt");
    if (!space || !done.insert(*space).second) continue;
    if (!watch_mounts(std::to_string(pid), unseen) && !proc::has_ended(pid)) missed_ = true;
  }
  missed_ = missed_ || !unseen.empty();
  looked_s_ = now;
}

/// The kernel has told of each fork before the child could do anything.
void Tracker::hear_forks() {
  alignas(nlmsghdr) std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t got = ::recv(forks_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == ENOBUFS) missed_ = true;
    if (got < 0 && (errno == EINTR || errno == ENOBUFS)) continue;
    if (got <= 0) return;
    const auto* head = reinterpret_cast<const nlmsghdr*>(buffer.data());
    if (static_cast<size_t>(got) < NLMSG_LENGTH(sizeof(cn_msg) + sizeof(proc_event))) continue;
    const auto* message = static_cast<const cn_msg*>(NLMSG_DATA(head));
    proc_event event;
    std::memcpy(&event, message->data, sizeof event);
    if (event.what != proc_event::PROC_EVENT_FORK) continue;
    const auto& fork = event.event_data.fork;
    if (fork.child_pid != fork.child_tgid) continue;  // a thread
    gone_.erase(fork.child_tgid);
    if (members_.count(fork.parent_tgid) != 0) members_.insert(fork.child_tgid);
    else members_.erase(fork.child_tgid);  // the number of one that has ended
  }
}

void Tracker::keep(const fanotify_event_metadata& event) {
  const UniqueFd fd(event.fd);
  struct stat st{};
  if (members_.count(event.pid) == 0 || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) return;
  if (st.st_nlink == 0) return;  // it is gone, or never had a name
  UniqueFd& kept = files_[{st.st_dev, st.st_ino}];
  if (kept) return;
  kept.reset(::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_PATH | O_CLOEXEC));
  if (!kept) missed_ = true, files_.erase({st.st_dev, st.st_ino});
}

void Tracker::hear_writes() {
  alignas(fanotify_event_metadata) std::array<char, 8192> buffer;
  for (;;) {
    ssize_t got = ::read(writes_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != EAGAIN) missed_ = true;  // a file that cannot be opened, or no room for it
    if (got <= 0) return;
    hear_forks();
    const auto* event = reinterpret_cast<const fanotify_event_metadata*>(buffer.data());
    for (; FAN_EVENT_OK(event, got); event = FAN_EVENT_NEXT(event, got)) {
      if ((event->mask & FAN_Q_OVERFLOW) != 0) missed_ = true;
      if (event->fd >= 0) keep(*event);
    }
  }
}

/// Whether one of these, "PID-START PID-START ...", is among its members.
bool Tracker::has_one_of(const std::string& processes) const {
  std::istringstream words(processes);
  for (std::string word; words >> word;) {
    const int pid = std::atoi(word.c_str());
    if (members_.count(pid) != 0 && name_of_process(pid).value_or("") == word) return true;
  }
  return false;
}

void Tracker::answer() {
  UniqueFd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer) return;
  const timeval patience{5, 0};
  for (const int way : {SO_RCVTIMEO, SO_SNDTIMEO})
    (void)::setsockopt(peer.get(), SOL_SOCKET, way, &patience, sizeof patience);
  constexpr uint64_t kMost = 16 << 20;
  const auto asked = io::read_all(peer.get(), kMost, "ckpt-track");
  if (!asked) return;
  hear_forks();
  if (!has_one_of(*asked)) {
    (void)!::send(peer.get(), kNothingMissed, std::strlen(kNothingMissed) + 1, MSG_NOSIGNAL);
    return;
  }
  watch_new_mounts(true);
  hear_writes();
  forget_deleted();
  std::string text(missed_ ? kSomethingMissed : kNothingMissed);
  text += '\0';
  for (const auto& [inode, fd] : files_) {
    auto name = proc::read_link(::getpid(), fmt::format("fd/{}", fd.get()).c_str());
    if (!name) continue;
    text += fmt::format("{} {} {}", inode.first, inode.second, *name);
    text += '\0';
  }
  send_all(peer.get(), text);
}

/// Their inodes, and the room that they take, would stay otherwise.
void Tracker::forget_deleted() {
  std::erase_if(files_, [](const auto& file) {
    struct statx st{};
    return !look_at(file.second.get(), "", AT_EMPTY_PATH, st) || st.stx_nlink == 0;
  });
}

/// What one that has ended wrote is told of a moment later: it is forgotten at the second look.
bool Tracker::anybody_lives() {
  std::erase_if(members_, [&](int pid) {
    auto stat = proc::read_stat(pid);
    if (stat && !stat->is_zombie()) return false;
    return !gone_.insert(pid).second;
  });
  return !members_.empty();
}

void Tracker::serve() {
  constexpr uint64_t kLookUs = 1'000'000;
  for (uint64_t look_us = monotonic_us();;) {
    std::array<pollfd, 4> fds = {pollfd{socket_.get(), POLLIN, 0}, pollfd{forks_.get(), POLLIN, 0},
                                 pollfd{writes_.get(), POLLIN, 0}, pollfd{mounts_.get(), POLLPRI, 0}};
    ::poll(fds.data(), fds.size(), kLookUs / 1000);
    hear_forks();
    hear_writes();
    if ((fds[3].revents & (POLLPRI | POLLERR)) != 0) watch_new_mounts(true);
    if (fds[0].revents != 0) answer();
    if (monotonic_us() - look_us < kLookUs) continue;
    look_us = monotonic_us();
    watch_new_mounts(false);
    forget_deleted();
    if (!anybody_lives()) break;
  }
  ::unlinkat(folder_.get(), name_.c_str(), 0);
}

[[noreturn]] void live(int root, int channel) {
  channel = proc::become_background("ckpt-track", channel);
  (void)!::chdir("/");
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  std::vector<std::string> unseen;
  auto tracker = Tracker::open(root, unseen);
  // The code, or -1, and in words what is wrong, or what is not seen.
  std::string text = tracker ? "" : tracker.error().text();
  for (const std::string& one : unseen) text += one + "\n";
  const int code = tracker ? -1 : static_cast<int>(tracker.error().code);
  (void)!::write(channel, &code, sizeof code);
  (void)!::write(channel, text.data(), text.size());
  ::close(channel);
  if (tracker) tracker->serve();
  ::_exit(0);
}

}  // namespace

Result<void> start_tracker(int root, std::vector<std::string>& unseen) {
  CKPT_TRY_ASSIGN(PipeEnds pipe, make_pipe());
  const pid_t middle = ::fork();
  if (middle < 0) return fork_error(errno, "", "cannot make a process");
  if (middle == 0) {
    const pid_t tracker = ::fork();
    if (tracker != 0) ::_exit(tracker < 0 ? 1 : 0);
    live(root, pipe.write.get());
  }
  pipe.write.reset();
  while (::waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
  }
  CKPT_TRY_ASSIGN(const std::string text, io::read_all(pipe.read.get(), 1 << 20, "ckpt-track"));
  int code = -1;
  if (text.size() < sizeof code) return fail(Code::kIo, "ckpt-track", "has ended before it was ready");
  std::memcpy(&code, text.data(), sizeof code);
  const std::string words = text.substr(sizeof code);
  if (code >= 0) return fail(static_cast<Code>(code), "ckpt-track", words.empty() ? "cannot be started" : words);
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);) unseen.push_back(line);
  return {};
}

}  // namespace ckpt::state
