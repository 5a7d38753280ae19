#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "lib/base/io.h"
#include "lib/capture/inventory_internal.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

namespace {

using store::Descriptor;
using store::DescriptorKind;

constexpr std::string_view kPipePrefix = "pipe:[";

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

/// True when two descriptors of the process are one open file description (dup).
bool same_description(int pid, int a, int b) { return ::syscall(SYS_kcmp, pid, pid, KCMP_FILE, a, b) == 0; }

uint64_t pipe_inode(std::string_view link) {
  uint64_t inode = 0;
  link.remove_prefix(kPipePrefix.size());
  std::from_chars(link.data(), link.data() + link.size(), inode);
  return inode;
}

/// Pipes of the process that some other process holds an end of.
std::set<std::string> pipes_held_elsewhere(int pid, const std::set<std::string>& pipes) {
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", std::filesystem::directory_options::skip_permission_denied)) {
    int other = 0;
    std::string name = entry.path().filename().string();
    auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), other);
    if (ec != std::errc() || end != name.data() + name.size() || other == pid || other == ::getpid()) continue;
    auto fds = proc::read_fds(other);
    if (!fds) continue;
    for (const proc::OpenFd& open : *fds) {
      if (pipes.count(open.link) != 0) out.insert(open.link);
    }
  }
  return out;
}

class DescriptorInventory {
 public:
  DescriptorInventory(int pid, int pidfd, const InventoryOptions& options, FileTable& files, Inventory& out)
      : pid_(pid), pidfd_(pidfd), options_(options), files_(files), out_(out) {}

  Result<void> run() {
    CKPT_TRY_ASSIGN(open_, proc::read_fds(pid_));
    find_outside_pipes();
    for (const proc::OpenFd& open : open_) CKPT_TRY(add(open));
    return check_epoll_targets();
  }

 private:
  void block(int fd, std::string what, std::string flag = "") {
    out_.blockers.push_back({"descriptor " + std::to_string(fd), std::move(what), std::move(flag)});
  }

  /// A pipe is the process's own when nobody else has it open, be its other end here or nowhere any more.
  void find_outside_pipes() {
    std::map<std::string, int> modes, numbers;
    for (const proc::OpenFd& open : open_) {
      if (!starts_with(open.link, kPipePrefix)) continue;
      auto info = proc::read_fdinfo(pid_, open.fd);
      int mode = info ? info->flags & O_ACCMODE : 0;
      modes[open.link] |= mode == O_RDONLY ? 1 : mode == O_WRONLY ? 2 : 3;
      numbers[open.link] = open.fd;
    }
    std::set<std::string> whole;
    for (const auto& [link, ends] : modes) {
      if (ends == 3 || other_end_closed(numbers[link])) whole.insert(link);
      else outside_pipes_.insert(link);
    }
    // Looking through every process takes milliseconds: not while the target stands still.
    if (options_.earlier != nullptr) out_.outside_pipes = options_.earlier->outside_pipes;
    else if (!whole.empty()) out_.outside_pipes = pipes_held_elsewhere(pid_, whole);
    outside_pipes_.insert(out_.outside_pipes.begin(), out_.outside_pipes.end());
  }

  /// The reader of a pipe without writers is hung up on, the writer of one without readers sees an error.
  bool other_end_closed(int fd) const {
    auto theirs = proc::get_remote_fd(pidfd_, fd);
    if (!theirs) return false;
    pollfd poll{theirs->get(), 0, 0};
    return ::poll(&poll, 1, 0) == 1 && (poll.revents & (POLLHUP | POLLERR)) != 0;
  }

  Result<void> add(const proc::OpenFd& open) {
    auto info = proc::read_fdinfo(pid_, open.fd);
    if (!info) return info.error().code == Code::kNotFound ? Result<void>() : Result<void>(info.error());
    std::pair<int, bool> number{open.fd, (info->flags & O_CLOEXEC) != 0};
    auto& group = by_link_[open.link];
    for (size_t index : group) {
      Descriptor& known = out_.image.descriptors[index];
      if (same_description(pid_, known.fds[0].first, open.fd)) {
        known.fds.push_back(number);
        return {};
      }
    }
    Descriptor descriptor;
    descriptor.fds.push_back(number);
    descriptor.flags = info->flags & ~O_CLOEXEC;
    descriptor.offset = info->position;
    CKPT_TRY_ASSIGN(bool supported, classify(open, *info, descriptor));
    if (!supported) return {};
    if ((info->flags & O_ASYNC) != 0) CKPT_TRY(take_owner(open.fd, descriptor));
    if (info->locks > 0) block(open.fd, "holds a lock on " + open.link + ", which is not supported yet");
    group.push_back(out_.image.descriptors.size());
    out_.image.descriptors.push_back(std::move(descriptor));
    return {};
  }

  /// Fills kind and state. False: a blocker was noted instead.
  Result<bool> classify(const proc::OpenFd& open, const proc::FdInfo& info, Descriptor& d) {
    const std::string& link = open.link;
    if (starts_with(link, kPipePrefix)) return take_pipe(open, d);
    if (starts_with(link, "anon_inode:")) return take_anonymous(open, info, d);
    if (starts_with(link, "socket:[")) return block(open.fd, "a socket (" + link + "), which is not supported yet"), false;
    if (starts_with(link, "/memfd:")) return block(open.fd, "a memfd (" + link + "), which is not supported yet"), false;
    if (link.empty() || link[0] != '/') return block(open.fd, "of a kind that is not known (" + link + ")"), false;
    struct stat st{};
    std::string path = fmt::format("/proc/{}/fd/{}", pid_, open.fd);
    if (::stat(path.c_str(), &st) != 0) return sys_error(path, "cannot stat");
    if (S_ISCHR(st.st_mode)) return take_device(open, st, d);
    if (starts_with(link, "/proc/")) return block(open.fd, "a file of /proc (" + link + "), which is not supported yet"), false;
    if (S_ISFIFO(st.st_mode)) return block(open.fd, "a named pipe (" + link + "), which is not supported yet"), false;
    if (S_ISBLK(st.st_mode)) return block(open.fd, "a block device (" + link + "), which is not supported"), false;
    return take_file(open, st, d);
  }

  Result<bool> take_file(const proc::OpenFd& open, const struct stat& st, Descriptor& d) {
    auto file = files_.add(open.link, st);
    if (!file) return block(open.fd, file.error().text()), false;
    d.kind = DescriptorKind::kFile;
    d.file = *file;
    d.written_by_process = (d.flags & O_ACCMODE) != O_RDONLY && S_ISREG(st.st_mode);
    return true;
  }

  Result<bool> take_device(const proc::OpenFd& open, const struct stat& st, Descriptor& d) {
    constexpr unsigned kMemory = 1, kTty = 4, kTtyAux = 5, kPtySlaveFirst = 136, kPtySlaveLast = 143;
    unsigned device_major = major(st.st_rdev), device_minor = minor(st.st_rdev);
    bool plain = device_major == kMemory && (device_minor == 3 || device_minor == 5 || (device_minor >= 7 && device_minor <= 9));
    if (plain) {  // null, zero, full, random, urandom
      CKPT_TRY_ASSIGN(bool ok, take_file(open, st, d));
      d.kind = DescriptorKind::kDevice;
      d.written_by_process = false;
      return ok;
    }
    bool terminal = device_major == kTty || device_major == kTtyAux || (device_major >= kPtySlaveFirst && device_major <= kPtySlaveLast);
    if (terminal && open.link != "/dev/ptmx") return take_external(open, "tty " + open.link, "a terminal (" + open.link + ") of the surroundings", d);
    if (starts_with(open.link, "/dev/nvidia")) {
      return block(open.fd, "a GPU (" + open.link + "): device memory is not supported yet"), false;
    }
    return block(open.fd, "a device (" + open.link + "), which is not supported"), false;
  }

  Result<bool> take_external(const proc::OpenFd& open, std::string name, const std::string& what, Descriptor& d) {
    if (!options_.shell_job) return block(open.fd, what, "--shell-job"), false;
    d.kind = DescriptorKind::kExternal;
    d.external = std::move(name);
    return true;
  }

  Result<bool> take_pipe(const proc::OpenFd& open, Descriptor& d) {
    if (outside_pipes_.count(open.link) != 0) {
      return take_external(open, open.link, "a pipe (" + open.link + ") whose other end is outside", d);
    }
    if ((d.flags & O_DIRECT) != 0) return block(open.fd, "a pipe in packet mode (O_DIRECT), which is not supported"), false;
    d.kind = DescriptorKind::kPipe;
    uint64_t inode = pipe_inode(open.link);
    auto known = pipes_.find(inode);
    if (known == pipes_.end()) {
      known = pipes_.emplace(inode, static_cast<int>(out_.image.pipes.size())).first;
      out_.image.pipes.emplace_back();
      out_.pipe_contents.emplace_back();
    }
    d.pipe = known->second;
    if ((d.flags & O_ACCMODE) == O_WRONLY) return true;
    CKPT_TRY(read_pipe(open.fd, static_cast<size_t>(d.pipe)));
    return true;
  }

  /// Copies what is in the pipe without taking it out: tee, from a duplicate of the read end.
  Result<void> read_pipe(int fd, size_t index) {
    store::Pipe& pipe = out_.image.pipes[index];
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(pidfd_, fd));
    int capacity = ::fcntl(theirs.get(), F_GETPIPE_SZ), size = 0;
    if (capacity > 0) pipe.capacity = static_cast<uint64_t>(capacity);
    if (::ioctl(theirs.get(), FIONREAD, &size) != 0) return sys_error("pipe", "cannot read its fill level");
    pipe.content_size = static_cast<uint64_t>(size);
    if (size == 0) return {};
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return sys_error("pipe", "cannot make a pipe");
    UniqueFd ours(ends[0]), into(ends[1]);
    (void)::fcntl(into.get(), F_SETPIPE_SZ, capacity);
    ssize_t copied = ::tee(theirs.get(), into.get(), static_cast<size_t>(size), SPLICE_F_NONBLOCK);
    if (copied != size) return copied < 0 ? sys_error("pipe", "cannot copy its content") : Error(Code::kIo, "pipe", "cannot copy all of its content");
    auto& content = out_.pipe_contents[index];
    content.resize(static_cast<size_t>(size));
    for (size_t at = 0; at < content.size();) {
      ssize_t n = ::read(ours.get(), content.data() + at, content.size() - at);
      if (n <= 0) return sys_error("pipe", "cannot read its content");
      at += static_cast<size_t>(n);
    }
    return {};
  }

  Result<bool> take_anonymous(const proc::OpenFd& open, const proc::FdInfo& info, Descriptor& d) {
    std::string_view kind = std::string_view(open.link).substr(std::string_view("anon_inode:").size());
    if (kind == "[eventfd]") {
      d.kind = DescriptorKind::kEventfd;
      d.eventfd_count = info.eventfd_count, d.eventfd_semaphore = info.eventfd_semaphore;
    } else if (kind == "[eventpoll]") {
      d.kind = DescriptorKind::kEpoll;
      for (const auto& target : info.epoll) d.epoll.push_back({target.fd, target.events, target.data});
    } else if (kind == "[timerfd]") {
      return take_timer(open.fd, d);
    } else if (kind == "[signalfd]") {
      d.kind = DescriptorKind::kSignalfd;
      d.signalfd_mask = info.signal_mask;
    } else {
      return block(open.fd, fmt::format("{}, which is not supported yet", kind)), false;
    }
    return true;
  }

  /// A periodic timer that has expired stands still until somebody reads it or asks for its time: only asking, which
  /// changes nothing that the process can see, makes fdinfo tell how often and when next.
  Result<bool> take_timer(int fd, Descriptor& d) {
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(pidfd_, fd));
    itimerspec now{};
    if (::timerfd_gettime(theirs.get(), &now) != 0) return sys_error("timerfd", "cannot read its time left");
    CKPT_TRY_ASSIGN(proc::FdInfo info, proc::read_fdinfo(pid_, fd));
    d.kind = DescriptorKind::kTimerfd;
    d.timerfd_clock = info.timer_clock, d.timerfd_settime_flags = info.timer_flags, d.timerfd_ticks = info.timer_ticks;
    d.timerfd_interval_ns = info.timer_interval_ns, d.timerfd_value_ns = info.timer_value_ns;
    // It may have expired again between the two looks; a disarmed one has no ticks.
    if (d.timerfd_value_ns == 0 && d.timerfd_ticks != 0) d.timerfd_value_ns = d.timerfd_interval_ns;
    if (d.timerfd_value_ns != 0 && d.timerfd_interval_ns == 0 && (d.timerfd_settime_flags & TFD_TIMER_ABSTIME) != 0) {
      timespec clock{};
      ::clock_gettime(d.timerfd_clock, &clock);
      d.timerfd_value_ns += static_cast<uint64_t>(clock.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(clock.tv_nsec);
    }
    return true;
  }

  Result<void> take_owner(int fd, Descriptor& d) {
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(pidfd_, fd));
    f_owner_ex owner{};
    if (::fcntl(theirs.get(), F_GETOWN_EX, &owner) == 0) d.owner_type = owner.type, d.owner_pid = owner.pid;
    int signal = ::fcntl(theirs.get(), F_GETSIG);
    d.owner_signal = signal > 0 ? signal : 0;
    return {};
  }

  /// An epoll set names descriptors by the number they had when they were added; one that was closed or replaced since
  /// cannot be added again by that number.
  Result<void> check_epoll_targets() {
    for (const Descriptor& d : out_.image.descriptors) {
      for (size_t i = 0; i < d.epoll.size(); ++i) {
        kcmp_epoll_slot slot{};
        slot.efd = static_cast<uint32_t>(d.fds[0].first), slot.tfd = static_cast<uint32_t>(d.epoll[i].target_fd);
        long order = ::syscall(SYS_kcmp, pid_, pid_, KCMP_EPOLL_TFD, d.epoll[i].target_fd, &slot);
        if (order != 0) block(d.fds[0].first, fmt::format("an epoll set that watches a closed or replaced descriptor ({})", d.epoll[i].target_fd));
      }
    }
    return {};
  }

  int pid_, pidfd_;
  const InventoryOptions& options_;
  FileTable& files_;
  Inventory& out_;
  std::vector<proc::OpenFd> open_;
  std::set<std::string> outside_pipes_;
  std::map<std::string, std::vector<size_t>> by_link_;  ///< link -> indices of descriptors, candidates for dup
  std::map<uint64_t, int> pipes_;                       ///< inode -> index of image.pipes
};

}  // namespace

Result<void> inventory_descriptors(int pid, int pidfd, const InventoryOptions& options, FileTable& files, Inventory& out) {
  return DescriptorInventory(pid, pidfd, options, files, out).run();
}

}  // namespace ckpt::capture
