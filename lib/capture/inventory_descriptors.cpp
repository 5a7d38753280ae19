#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "lib/base/io.h"
#include "lib/capture/inventory_internal.h"
#include "lib/capture/locks.h"
#include "lib/capture/posix_queue.h"
#include "lib/capture/sockets.h"
#include "lib/capture/terminals.h"
#include "lib/capture/watches.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

namespace {

using store::Descriptor;
using store::DescriptorKind;

constexpr std::string_view kPipePrefix = "pipe:[";

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

/// A descriptor of a process of the tree.
struct Place {
  size_t process = 0;
  int pid = 0, pidfd = -1;
  int fd = 0;
  std::string link;
};

/// Which open file description a descriptor leads to: kcmp(2) gives an order, so one is found among many by bisection.
struct KernelFileOrder {
  bool operator()(const Place& a, const Place& b) const {
    return ::syscall(SYS_kcmp, a.pid, b.pid, KCMP_FILE, a.fd, b.fd) == 1;
  }
};

uint64_t pipe_inode(std::string_view link) {
  uint64_t inode = 0;
  link.remove_prefix(kPipePrefix.size());
  std::from_chars(link.data(), link.data() + link.size(), inode);
  return inode;
}

/// Those of `links` that a process outside the tree has open.
std::set<std::string> held_outside(const std::vector<Member>& members, const std::set<std::string>& links) {
  std::set<std::string> out;
  std::set<int> tree = {::getpid()};
  for (const Member& member : members) tree.insert(member.entry.pid);
  for (const auto& entry : std::filesystem::directory_iterator("/proc", std::filesystem::directory_options::skip_permission_denied)) {
    int other = 0;
    std::string name = entry.path().filename().string();
    auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), other);
    if (ec != std::errc() || end != name.data() + name.size() || tree.count(other) != 0) continue;
    auto fds = proc::read_fds(other);
    if (!fds) continue;
    for (const proc::OpenFd& open : *fds) {
      if (links.count(open.link) != 0) out.insert(open.link);
    }
  }
  return out;
}

class DescriptorInventory {
 public:
  explicit DescriptorInventory(Walk& walk)
      : walk_(walk), out_(walk.out), sockets_(socket_options(walk.options), [this](UniqueFd fd) { return take_right(std::move(fd)); }) {}

  Result<void> run() {
    for (size_t i = 0; i < walk_.members.size(); ++i) {
      const Member& member = walk_.members[i];
      if (member.entry.zombie || out_.image.processes[i].descriptors_of >= 0) continue;
      auto fds = proc::read_fds(member.entry.pid);
      if (!fds) return std::move(fds).error();
      for (proc::OpenFd& open : *fds) places_.push_back({i, member.entry.pid, member.pidfd.get(), open.fd, std::move(open.link)});
    }
    for (const Place& place : places_) CKPT_TRY(add(place));
    CKPT_TRY(take_sockets());
    CKPT_TRY(take_terminals());
    CKPT_TRY(settle_pipes());
    check_epoll_targets();
    return {};
  }

 private:
  void block(const Place& place, std::string what, std::string flag = "") {
    out_.block(place.process, "descriptor " + std::to_string(place.fd), std::move(what), std::move(flag));
  }

  /// A pipe is the tree's own when nobody else has it open, be its other end here, on its way, or nowhere any more. Any other
  /// one is of the surroundings.
  Result<void> settle_pipes() {
    std::map<int, int> modes;
    for (const Descriptor& d : out_.image.descriptors) {
      if (d.kind != DescriptorKind::kPipe) continue;
      const int mode = d.flags & O_ACCMODE;
      modes[d.pipe] |= mode == O_RDONLY ? 1 : mode == O_WRONLY ? 2 : 3;
    }
    std::set<std::string> whole, outside;
    for (const auto& [pipe, place] : pipe_places_) {
      if (modes[pipe] == 3 || other_end_closed(place)) whole.insert(place.link);
      else if (!may_be_on_its_way()) outside.insert(place.link);
    }
    // Looking through every process takes milliseconds: not while the target stands still.
    if (walk_.options.earlier != nullptr) out_.outside_pipes = walk_.options.earlier->outside_pipes;
    else if (!whole.empty()) out_.outside_pipes = held_outside(walk_.members, whole);
    outside.insert(out_.outside_pipes.begin(), out_.outside_pipes.end());
    for (Descriptor& d : out_.image.descriptors) {
      if (d.kind != DescriptorKind::kPipe) continue;
      const Place& place = pipe_places_.at(d.pipe);
      if (outside.count(place.link) == 0) continue;
      CKPT_TRY(take_external(place, place.link, "a pipe (" + place.link + ") whose other end is outside", d));
      out_.image.pipes[static_cast<size_t>(d.pipe)] = {};
      out_.pipe_contents[static_cast<size_t>(d.pipe)].clear();
      d.pipe = -1;
    }
    return {};
  }

  /// While the tree runs its queues are not looked into: what waits in one may be a descriptor.
  bool may_be_on_its_way() const { return !walk_.options.frozen && sockets_hold_data_; }

  /// The reader of a pipe without writers is hung up on, the writer of one without readers sees an error.
  bool other_end_closed(const Place& place) const {
    auto theirs = proc::get_remote_fd(place.pidfd, place.fd);
    if (!theirs) return false;
    pollfd poll{theirs->get(), 0, 0};
    return ::poll(&poll, 1, 0) == 1 && (poll.revents & (POLLHUP | POLLERR)) != 0;
  }

  Result<void> add(const Place& place) {
    auto info = proc::read_fdinfo(place.pid, place.fd);
    if (!info) return info.error().code == Code::kNotFound ? Result<void>() : Result<void>(info.error());
    CKPT_TRY_ASSIGN(int index, find_or_describe(place, *info));
    if (info->locks > 0) CKPT_TRY(take_locks(place, index));
    if (index < 0) return {};
    Descriptor& descriptor = out_.image.descriptors[static_cast<size_t>(index)];
    store::FdSlot slot{static_cast<int>(place.process), place.fd, (info->flags & O_CLOEXEC) != 0};
    const bool own_only = descriptor.kind == DescriptorKind::kProcFile || descriptor.kind == DescriptorKind::kPidfd;
    if (own_only && !descriptor.fds.empty() && descriptor.fds[0].process != slot.process) {
      block(place, place.link + ", which two processes share: not supported");
    }
    descriptor.fds.push_back(slot);
    return {};
  }

  /// The index of the open file description behind a descriptor, -1: it cannot be carried.
  Result<int> find_or_describe(const Place& place, const proc::FdInfo& info) {
    auto& group = by_link_[place.link];
    if (auto known = group.find(place); known != group.end()) return known->second;
    Descriptor descriptor;
    descriptor.flags = info.flags & ~O_CLOEXEC;
    descriptor.offset = info.position;
    CKPT_TRY_ASSIGN(bool supported, classify(place, info, descriptor));
    const int index = supported ? static_cast<int>(out_.image.descriptors.size()) : -1;
    group.emplace(place, index);
    if (!supported) return index;
    CKPT_TRY(take_owner(place, descriptor));
    const DescriptorKind kind = descriptor.kind;
    out_.image.descriptors.push_back(std::move(descriptor));
    if (kind == DescriptorKind::kSocket) CKPT_TRY(add_socket(place, index));
    if (kind == DescriptorKind::kTerminal) CKPT_TRY(add_terminal(place, index));
    return index;
  }

  /// flock and OFD locks are the description's, and every process that shares it shows them; POSIX locks are the process's.
  Result<void> take_locks(const Place& place, int index) {
    CKPT_TRY_ASSIGN(std::string text, proc::read_small(place.pid, fmt::format("fdinfo/{}", place.fd)));
    auto locks = parse_locks(text);
    if (!locks) return block(place, locks.error().text()), Result<void>();
    if (index < 0) return {};
    Descriptor& descriptor = out_.image.descriptors[static_cast<size_t>(index)];
    const int mode = descriptor.flags & O_ACCMODE;
    for (const store::FileLock& lock : *locks) {
      if (lock.kind != store::LockKind::kPosix) {
        if (descriptor.fds.empty()) descriptor.locks.push_back(lock);
      } else if (lock.write ? mode != O_RDONLY : mode != O_WRONLY) {  // every descriptor of the file shows it
        out_.image.processes[place.process].locks.push_back({place.fd, lock});
      }
    }
    return {};
  }

  /// Fills kind and state. False: a blocker was noted instead.
  Result<bool> classify(const Place& place, const proc::FdInfo& info, Descriptor& d) {
    const std::string& link = place.link;
    if (starts_with(link, kPipePrefix)) return take_pipe(place, d);
    if (starts_with(link, "anon_inode:")) return take_anonymous(place, info, d);
    if (starts_with(link, "socket:[")) {
      d.kind = DescriptorKind::kSocket;
      return true;
    }
    const std::string access = fmt::format("/proc/{}/fd/{}", place.pid, place.fd);
    if (starts_with(link, "/memfd:")) {
      d.kind = DescriptorKind::kMemfd;
      CKPT_TRY_ASSIGN(d.shared_memory, walk_.shared_memory.add_memfd(link, access));
      return true;
    }
    if (link.empty() || link[0] != '/') return block(place, "of a kind that is not known (" + link + ")"), false;
    struct stat st{};
    if (::stat(access.c_str(), &st) != 0) return sys_error(access, "cannot stat");
    if (S_ISCHR(st.st_mode)) return take_device(place, st, d);
    if (starts_with(link, "/proc/")) return take_proc_file(place, st, d);
    if (S_ISFIFO(st.st_mode)) return take_fifo(place, st, d);
    if (S_ISREG(st.st_mode)) {
      CKPT_TRY_ASSIGN(bool queue, take_posix_queue(place, d));
      if (queue) return d.object >= 0;
    }
    if (S_ISBLK(st.st_mode)) return block(place, "a block device (" + link + "), which is not supported"), false;
    return take_file(place, st, d);
  }

  Result<bool> take_file(const Place& place, const struct stat& st, Descriptor& d) {
    auto file = walk_.files.add(place.link, st, fmt::format("/proc/{}/fd/{}", place.pid, place.fd));
    if (!file && file.error().code != Code::kAnswerNo) return std::move(file).error();
    if (!file) {
      const bool large = file.error().message.find("--ghost-limit") != std::string::npos;
      return block(place, file.error().text(), large ? "--ghost-limit" : ""), false;
    }
    d.kind = DescriptorKind::kFile;
    d.file = *file;
    d.written_by_process = (d.flags & O_ACCMODE) != O_RDONLY && S_ISREG(st.st_mode);
    return true;
  }

  /// "/proc/12/status" of a process in the tree is opened again by the process that holds it; what belongs to no process
  /// is a file like others.
  Result<bool> take_proc_file(const Place& place, const struct stat& st, Descriptor& d) {
    int pid = 0;
    const char* number = place.link.c_str() + std::string_view("/proc/").size();
    auto [end, ec] = std::from_chars(number, number + std::strlen(number), pid);
    if (ec != std::errc()) return take_file(place, st, d);
    if (out_.find(pid) < 0) return block(place, "a file of another process (" + place.link + ")"), false;
    d.kind = DescriptorKind::kProcFile;
    d.external = place.link;
    return true;
  }

  Result<bool> take_device(const Place& place, const struct stat& st, Descriptor& d) {
    constexpr unsigned kMemory = 1, kTty = 4, kTtyAux = 5, kPtySlaveFirst = 136, kPtySlaveLast = 143;
    unsigned device_major = major(st.st_rdev), device_minor = minor(st.st_rdev);
    bool plain = device_major == kMemory && (device_minor == 3 || device_minor == 5 || (device_minor >= 7 && device_minor <= 9));
    if (plain) {  // null, zero, full, random, urandom
      CKPT_TRY_ASSIGN(bool ok, take_file(place, st, d));
      d.kind = DescriptorKind::kDevice;
      d.written_by_process = false;
      return ok;
    }
    bool terminal = device_major == kTty || device_major == kTtyAux || (device_major >= kPtySlaveFirst && device_major <= kPtySlaveLast);
    if (terminal) {
      d.kind = DescriptorKind::kTerminal;
      return true;
    }
    if (starts_with(place.link, "/dev/nvidia")) {
      return block(place, "a GPU (" + place.link + "): device memory is not supported yet"), false;
    }
    return block(place, "a device (" + place.link + "), which is not supported"), false;
  }

  Result<bool> take_external(const Place& place, std::string name, const std::string& what, Descriptor& d) {
    if (!walk_.options.shell_job) return block(place, what, "--shell-job"), false;
    d.kind = DescriptorKind::kExternal;
    d.external = std::move(name);
    return true;
  }

  Result<bool> take_pipe(const Place& place, Descriptor& d) {
    d.kind = DescriptorKind::kPipe;
    CKPT_TRY_ASSIGN(bool joined, join_pipe(place, {0, pipe_inode(place.link)}, d));
    pipe_places_.emplace(d.pipe, place);
    return joined;
  }

  Result<bool> take_fifo(const Place& place, const struct stat& st, Descriptor& d) {
    CKPT_TRY_ASSIGN(bool ok, take_file(place, st, d));
    if (!ok) return false;
    d.kind = DescriptorKind::kFifo;
    d.written_by_process = false;
    return join_pipe(place, {st.st_dev, st.st_ino}, d);
  }

  Result<bool> join_pipe(const Place& place, std::pair<uint64_t, uint64_t> inode, Descriptor& d) {
    if ((d.flags & O_DIRECT) != 0) return block(place, "a pipe in packet mode (O_DIRECT), which is not supported"), false;
    auto [known, is_new] = pipes_.emplace(inode, PipeState{static_cast<int>(out_.image.pipes.size()), false});
    if (is_new) {
      out_.image.pipes.emplace_back();
      out_.pipe_contents.emplace_back();
    }
    d.pipe = known->second.index;
    if ((d.flags & O_ACCMODE) == O_WRONLY || (d.flags & O_PATH) != 0 || !walk_.options.frozen || std::exchange(known->second.read, true)) return true;
    CKPT_TRY(read_pipe(place, static_cast<size_t>(d.pipe)));
    return true;
  }

  /// Copies what is in the pipe without taking it out: tee, from a duplicate of the read end.
  Result<void> read_pipe(const Place& place, size_t index) {
    store::Pipe& pipe = out_.image.pipes[index];
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
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

  Result<bool> take_anonymous(const Place& place, const proc::FdInfo& info, Descriptor& d) {
    std::string_view kind = std::string_view(place.link).substr(std::string_view("anon_inode:").size());
    if (kind == "[eventfd]") {
      d.kind = DescriptorKind::kEventfd;
      d.eventfd_count = info.eventfd_count, d.eventfd_semaphore = info.eventfd_semaphore;
    } else if (kind == "[eventpoll]") {
      d.kind = DescriptorKind::kEpoll;
      for (const auto& target : info.epoll) d.epoll.push_back({static_cast<int>(place.process), target.fd, -1, target.events, target.data});
    } else if (kind == "[timerfd]") {
      return take_timer(place, d);
    } else if (kind == "[signalfd]") {
      d.kind = DescriptorKind::kSignalfd;
      d.signalfd_mask = info.signal_mask;
    } else if (kind == "inotify" || kind == "[fanotify]") {
      return take_watches(place, kind == "inotify", d);
    } else if (kind == "[pidfd]") {
      return take_pidfd(place, d);
    } else {
      return block(place, fmt::format("{}, which is not supported", kind)), false;
    }
    return true;
  }

  Result<bool> take_watches(const Place& place, bool inotify, Descriptor& d) {
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
    CKPT_TRY_ASSIGN(std::string text, proc::read_small(place.pid, fmt::format("fdinfo/{}", place.fd)));
    if (!finder_) {
      CKPT_TRY_ASSIGN(FileFinder finder, FileFinder::create(known_folders()));
      finder_.emplace(std::move(finder));
    }
    Result<void> described;
    // The finder goes from folder to folder: not in a thread whose current one others use.
    std::thread([&] {
      if (::unshare(CLONE_FS) != 0) {
        described = sys_error(place.link, "cannot be looked into");
      } else if (inotify) {
        auto found = describe_inotify(theirs.get(), text, *finder_);
        if (found) d.object = static_cast<int>(out_.image.inotifies.size()), out_.image.inotifies.push_back(std::move(*found));
        else described = found.error();
      } else {
        auto found = describe_fanotify(theirs.get(), text, *finder_);
        if (found) d.object = static_cast<int>(out_.image.fanotifies.size()), out_.image.fanotifies.push_back(std::move(*found));
        else described = found.error();
      }
    }).join();
    if (!described) return block(place, described.error().text()), false;
    d.kind = inotify ? DescriptorKind::kInotify : DescriptorKind::kFanotify;
    return true;
  }

  /// Where a watched file may lie whose name the kernel has forgotten.
  std::vector<std::string> known_folders() const {
    std::set<std::string> folders;
    for (const store::FileIdentity& file : out_.image.files) {
      if (!file.path.empty() && file.path[0] == '/') folders.insert(S_ISDIR(file.mode) ? file.path : std::filesystem::path(file.path).parent_path().string());
    }
    return {folders.begin(), folders.end()};
  }

  Result<bool> take_pidfd(const Place& place, Descriptor& d) {
    CKPT_TRY_ASSIGN(std::string text, proc::read_small(place.pid, fmt::format("fdinfo/{}", place.fd)));
    auto handle = parse_pidfd(text);
    if (!handle) return block(place, handle.error().text()), false;
    if (handle->pid >= 0 && !is_of_tree(handle->pid)) {
      return block(place, "a pidfd of a process outside (" + proc::describe_pid(handle->pid) + ")"), false;
    }
    d.kind = DescriptorKind::kPidfd;
    d.object = static_cast<int>(out_.image.process_handles.size());
    out_.image.process_handles.push_back(*handle);
    return true;
  }

  /// A process or a thread of it.
  bool is_of_tree(int number) const {
    for (const store::ProcessImage& process : out_.image.processes) {
      for (const store::Thread& thread : process.threads) {
        if (thread.tid == number) return true;
      }
    }
    return false;
  }

  /// True: it is one; d.object stays -1 where it cannot be carried.
  Result<bool> take_posix_queue(const Place& place, Descriptor& d) {
    struct statfs fs{};
    const std::string access = fmt::format("/proc/{}/fd/{}", place.pid, place.fd);
    constexpr long kMqueueMagic = 0x19800202;
    if (::statfs(access.c_str(), &fs) != 0 || fs.f_type != kMqueueMagic) return false;
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
    struct stat st{};
    if (::fstat(theirs.get(), &st) != 0) return sys_error(place.link, "cannot stat");
    d.kind = DescriptorKind::kPosixQueue;
    auto [known, is_new] = queues_.emplace(st.st_ino, -1);
    if (is_new) {
      auto queue = describe_posix_queue(theirs.get(), place.link, walk_.options.frozen);
      if (!queue) return block(place, queue.error().text()), true;
      known->second = static_cast<int>(out_.image.posix_queues.size());
      out_.image.posix_queues.push_back(std::move(*queue));
    }
    d.object = known->second;
    return true;
  }

  Result<void> add_terminal(const Place& place, int index) {
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
    terminals_.push_back({place, index, std::move(theirs)});
    return {};
  }

  /// All of them at once: two ends make one terminal. One whose master is outside is of the surroundings.
  Result<void> take_terminals() {
    if (terminals_.empty()) return {};
    std::vector<int> fds;
    for (const OpenTerminal& open : terminals_) fds.push_back(open.fd.get());
    CKPT_TRY_ASSIGN(TerminalsFound found, describe_terminals(fds, walk_.options.frozen));
    for (size_t i = 0; i < terminals_.size(); ++i) {
      const Place& place = terminals_[i].place;
      Descriptor& d = out_.image.descriptors[static_cast<size_t>(terminals_[i].descriptor)];
      if (found.ends[i].terminal < 0) {
        CKPT_TRY(take_external(place, "tty " + place.link, "a terminal (" + place.link + ") of the surroundings", d));
        continue;
      }
      d.object = static_cast<int>(out_.image.terminal_ends.size());
      out_.image.terminal_ends.push_back(found.ends[i]);
    }
    for (const auto& [index, why] : found.refused) block(terminals_[index].place, why);
    out_.image.terminals = std::move(found.terminals);
    out_.notes.insert(out_.notes.end(), found.notes.begin(), found.notes.end());
    if (walk_.options.earlier != nullptr) return {};
    std::vector<int> pids;
    for (const Member& member : walk_.members) pids.push_back(member.entry.pid);
    std::sort(pids.begin(), pids.end());
    for (const auto& [index, who] : outside_users_of_terminals(out_.image.terminals, pids)) {
      out_.blockers.push_back({fmt::format("terminal /dev/pts/{}", index), "is in use by " + who + ", which is outside", ""});
    }
    return {};
  }

  Result<void> add_socket(const Place& place, int index) {
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
    int waiting = 0;
    sockets_hold_data_ = sockets_hold_data_ || (::ioctl(theirs.get(), FIONREAD, &waiting) == 0 && waiting > 0);
    const bool in_flight = place.pid == ::getpid();
    std::string subject = in_flight ? "a descriptor on its way" : fmt::format("process {}, descriptor {}", proc::describe_pid(place.pid), place.fd);
    const int holder = in_flight ? walk_.members[0].entry.pid : place.pid;
    sockets_.add({std::move(theirs), index, holder, std::move(subject)});
    out_.image.descriptors[static_cast<size_t>(index)].object = static_cast<int>(sockets_added_++);
    return {};
  }

  /// A descriptor found in a socket's queue: it leads to a description that is known, or to one that is nowhere else.
  Result<int> take_right(UniqueFd fd) {
    const int pid = ::getpid();
    if (!own_pidfd_) {
      CKPT_TRY_ASSIGN(own_pidfd_, proc::open_pidfd(pid));
    }
    CKPT_TRY_ASSIGN(std::string link, proc::read_link(pid, fmt::format("fd/{}", fd.get())));
    Place place{0, pid, own_pidfd_.get(), fd.get(), std::move(link)};
    rights_.push_back(std::move(fd));
    CKPT_TRY_ASSIGN(proc::FdInfo info, proc::read_fdinfo(pid, place.fd));
    return find_or_describe(place, info);
  }

  static SocketCaptureOptions socket_options(const InventoryOptions& options) {
    return {options.frozen, options.sockets.tcp_established, options.sockets.tcp_close, options.sockets.external_unix};
  }

  Result<void> take_sockets() {
    if (sockets_added_ == 0) return {};
    CKPT_TRY(sockets_.run());
    for (const Blocker& blocker : sockets_.blockers) {
      if (blocker.flag != "--ext-unix-sk" || !may_be_on_its_way()) out_.blockers.push_back(blocker);
    }
    out_.notes.insert(out_.notes.end(), sockets_.notes.begin(), sockets_.notes.end());
    for (size_t index : sockets_.established()) {
      UniqueFd fd(::fcntl(sockets_.fd(index), F_DUPFD_CLOEXEC, 0));
      if (!fd) return sys_error("socket", "cannot be duplicated");
      out_.connections.push_back(std::move(fd));
    }
    out_.image.sockets = std::move(sockets_.sockets);
    out_.socket_contents = std::move(sockets_.contents);
    return {};
  }

  /// A periodic timer that has expired stands still until somebody reads it or asks for its time: only asking, which
  /// changes nothing that the process can see, makes fdinfo tell how often and when next.
  Result<bool> take_timer(const Place& place, Descriptor& d) {
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
    itimerspec now{};
    if (::timerfd_gettime(theirs.get(), &now) != 0) return sys_error("timerfd", "cannot read its time left");
    CKPT_TRY_ASSIGN(proc::FdInfo info, proc::read_fdinfo(place.pid, place.fd));
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

  /// F_SETOWN and F_SETSIG. Not asked of what only has a path, and of a file, which nobody can be told about.
  Result<void> take_owner(const Place& place, Descriptor& d) {
    if ((d.flags & O_PATH) != 0 || d.kind == DescriptorKind::kFile || d.kind == DescriptorKind::kDevice) {
      if ((d.flags & O_ASYNC) == 0) return {};
    }
    CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
    f_owner_ex owner{};
    if (::fcntl(theirs.get(), F_GETOWN_EX, &owner) == 0) d.owner_type = owner.type, d.owner_pid = owner.pid;
    int signal = ::fcntl(theirs.get(), F_GETSIG);
    d.owner_signal = signal > 0 ? signal : 0;
    return {};
  }

  /// An epoll set names descriptors by the number they had when they were added. One that was closed or replaced since is
  /// watched as long as its description is open somewhere.
  void check_epoll_targets() {
    for (Descriptor& d : out_.image.descriptors) {
      std::map<int, uint32_t> seen;  // several of one number are told apart by their order
      for (auto& entry : d.epoll) {
        const uint32_t order = seen[entry.target_fd]++;
        auto watched = [&](const store::FdSlot& slot) { return watches(slot, slot, entry.target_fd, order, entry.target_fd); };
        auto slot = std::find_if(d.fds.begin(), d.fds.end(), watched);
        if (slot != d.fds.end()) {
          entry.process = slot->process;
        } else if (!d.fds.empty()) {
          entry.process = d.fds[0].process;
          entry.descriptor = find_watched(d.fds[0], entry.target_fd, order);
        }
        if (slot == d.fds.end() && entry.descriptor < 0) {
          const size_t process = d.fds.empty() ? 0 : static_cast<size_t>(d.fds[0].process);
          const std::string subject = d.fds.empty() ? "an epoll set on its way" : fmt::format("descriptor {}", d.fds[0].fd);
          out_.block(process, subject, fmt::format("an epoll set that watches a descriptor which is gone ({})", entry.target_fd));
        }
      }
    }
  }

  /// Whether `fd` in the table of `of` is what the epoll set `set` watches under `target`.
  bool watches(const store::FdSlot& set, const store::FdSlot& of, int target, uint32_t order, int fd) const {
    auto pid = [&](const store::FdSlot& slot) { return out_.image.processes[static_cast<size_t>(slot.process)].pid; };
    kcmp_epoll_slot slot{};
    slot.efd = static_cast<uint32_t>(set.fd), slot.tfd = static_cast<uint32_t>(target), slot.toff = order;
    return ::syscall(SYS_kcmp, pid(of), pid(set), KCMP_EPOLL_TFD, fd, &slot) == 0;
  }

  int find_watched(const store::FdSlot& set, int target, uint32_t order) const {
    for (size_t i = 0; i < out_.image.descriptors.size(); ++i) {
      const Descriptor& d = out_.image.descriptors[i];
      if (!d.fds.empty() && watches(set, d.fds[0], target, order, d.fds[0].fd)) return static_cast<int>(i);
    }
    return -1;
  }

  struct OpenTerminal {
    Place place;
    int descriptor;
    UniqueFd fd;
  };
  struct PipeState {
    int index;
    bool read;  ///< its content is here
  };

  Walk& walk_;
  Inventory& out_;
  std::vector<Place> places_;
  std::map<int, Place> pipe_places_;  ///< a descriptor of each pipe
  bool sockets_hold_data_ = false;
  std::map<std::string, std::map<Place, int, KernelFileOrder>> by_link_;  ///< link -> index of image.descriptors, -1: blocked
  std::map<std::pair<uint64_t, uint64_t>, PipeState> pipes_;              ///< by device and inode
  std::map<uint64_t, int> queues_;                                        ///< POSIX queues, by inode
  std::vector<OpenTerminal> terminals_;
  SocketCapture sockets_;
  size_t sockets_added_ = 0;
  std::optional<FileFinder> finder_;
  UniqueFd own_pidfd_;
  std::vector<UniqueFd> rights_;  ///< found in flight
};

}  // namespace

Result<void> inventory_descriptors(Walk& walk) { return DescriptorInventory(walk).run(); }

}  // namespace ckpt::capture
