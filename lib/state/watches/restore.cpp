#include "lib/state/watches/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "lib/state/files/without_links.h"
#include "lib/state/mounts/made.h"

namespace ckpt::restore {

namespace {

constexpr unsigned long kSetNextWatch = _IOW('I', 0, int32_t);  // INOTIFY_IOC_SETNEXTWD, with CONFIG_CHECKPOINT_RESTORE

/// What is watched, followed by no link; `proc_link` leads to it and to nothing else.
struct Watched {
  UniqueFd fd;
  std::string proc_link;
};

Result<Watched> find_watched(const std::string& path) {
  const int fd = open_without_links(path.c_str(), O_PATH | O_NOFOLLOW);  // a link itself may be watched
  if (fd == -ELOOP)
    return fail(Code::kMismatch, path, "is watched by the process, and is, or lies behind, a symbolic link now");
  if (fd < 0) return sys_error(-fd, path, "is watched by the process, and cannot be found");
  return Watched{UniqueFd(fd), fmt::format("/proc/self/fd/{}", fd)};
}

Result<Watched> find_same(const std::string& path, uint64_t device, uint64_t inode) {
  CKPT_TRY_ASSIGN(Watched watched, find_watched(path));
  struct stat st{};
  const bool is_there = ::fstat(watched.fd.get(), &st) == 0;
  const auto made = state::made_device(device);  // by ckpt itself, from the image
  if (!is_there || (made ? st.st_dev != *made : st.st_dev != device || st.st_ino != inode))
    return fail(Code::kMismatch, path, "is watched by the process, and has been replaced since");
  return watched;
}

Result<void> add_watch(int fd, const store::InotifyWatch& watch) {
  CKPT_TRY_ASSIGN(Watched watched, find_same(watch.path, watch.device, watch.inode));
  if (::ioctl(fd, kSetNextWatch, static_cast<unsigned long>(watch.wd)) != 0)
    return sys_error(watch.path, "cannot choose the number of its watch");
  int wd = ::inotify_add_watch(fd, watched.proc_link.c_str(), watch.mask);
  if (wd < 0) return sys_error(watch.path, "cannot be watched");
  if (wd != watch.wd) {
    return fail(Code::kIo, watch.path, fmt::format("its watch got number {} instead of {}", wd, watch.wd));
  }
  return {};
}

Result<void> read_events(int fd, uint64_t bytes) {
  std::vector<char> room(64 * 1024);
  while (bytes != 0) {
    ssize_t n = ::read(fd, room.data(), std::min<uint64_t>(bytes, room.size()));
    if (n <= 0) return sys_error("inotify", "cannot drop the events of its making");
    bytes -= static_cast<uint64_t>(n);
  }
  return {};
}

int queued_bytes(int fd) {
  int bytes = 0;
  return ::ioctl(fd, FIONREAD, &bytes) == 0 ? bytes : 0;
}

/// Fills the queue with events of a file of ckpt's own until the kernel adds IN_Q_OVERFLOW, then drops all but that:
/// nothing else makes one. What happens while the queue is full leaves no trace, the end of that watch included.
Result<void> overflow_queue(int fd) {
  UniqueFd file(::memfd_create("ckpt-overflow", MFD_CLOEXEC));
  if (!file) return sys_error("inotify", "cannot make a file to watch");
  int wd = ::inotify_add_watch(fd, fmt::format("/proc/self/fd/{}", file.get()).c_str(), IN_ATTRIB | IN_MODIFY);
  if (wd < 0) return sys_error("inotify", "cannot watch a file of ckpt's own");
  // Two different events in turn: the kernel merges equal neighbours.
  constexpr int kMostEvents = 64 << 20, kBatch = 512;
  int before = -1, made = 0;
  for (int queued = 0; queued != before && made < kMostEvents; made += kBatch) {
    before = queued;
    for (int i = 0; i < kBatch; i += 2) (void)::fchmod(file.get(), 0600), (void)::ftruncate(file.get(), 0);
    queued = queued_bytes(fd);
  }
  (void)::inotify_rm_watch(fd, wd);
  return read_events(fd, static_cast<uint64_t>(before) - sizeof(inotify_event));
}

unsigned scope_flag(store::FanotifyScope scope) {
  switch (scope) {
    case store::FanotifyScope::kMount:
      return FAN_MARK_MOUNT;
    case store::FanotifyScope::kFilesystem:
      return FAN_MARK_FILESYSTEM;
    case store::FanotifyScope::kInode:
      break;
  }
  return 0;
}

Result<void> add_mark(int fd, const store::FanotifyMark& mark) {
  constexpr unsigned kEvictable = 0x200, kIgnore = 0x400;  // since 5.19 and 6.0
  auto watched = mark.scope == store::FanotifyScope::kInode ? find_same(mark.path, mark.device, mark.inode)
                                                            : find_watched(mark.path);
  if (!watched) return std::move(watched).error();
  unsigned flags = FAN_MARK_ADD | scope_flag(mark.scope);
  auto put = [&](unsigned more, uint64_t mask) -> Result<void> {
    if (mask == 0 || ::fanotify_mark(fd, flags | more, mask, AT_FDCWD, watched->proc_link.c_str()) == 0) return {};
    return sys_error(mark.path, "cannot be watched");
  };
  CKPT_TRY(put(mark.flags & kEvictable, mark.mask));
  unsigned ignoring = (mark.flags & kIgnore) != 0 ? kIgnore : static_cast<unsigned>(FAN_MARK_IGNORED_MASK);
  return put(ignoring | (mark.flags & (kEvictable | FAN_MARK_IGNORED_SURV_MODIFY)), mark.ignored_mask);
}

}  // namespace

Result<UniqueFd> make_inotify(const store::Inotify& inotify, int flags) {
  UniqueFd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd) return sys_error("inotify", "cannot be made");
  if (inotify.overflow) CKPT_TRY(overflow_queue(fd.get()));
  for (const auto& watch : inotify.watches) CKPT_TRY(add_watch(fd.get(), watch));
  int next = inotify.watches.empty() ? 1 : inotify.watches.back().wd;
  if (!inotify.watches.empty() && next != INT_MAX) ++next;
  if (::ioctl(fd.get(), kSetNextWatch, static_cast<unsigned long>(next)) != 0)
    return sys_error("inotify", "cannot choose the number of the next watch");
  if (::fcntl(fd.get(), F_SETFL, flags & O_NONBLOCK) != 0) return sys_error("inotify", "cannot set its flags");
  return fd;
}

Result<UniqueFd> make_fanotify(const store::Fanotify& fanotify) {
  UniqueFd fd(::fanotify_init(fanotify.flags | FAN_CLOEXEC, fanotify.event_flags));
  if (!fd) return sys_error("fanotify", "cannot be made");
  for (const auto& mark : fanotify.marks) CKPT_TRY(add_mark(fd.get(), mark));
  return fd;
}

}  // namespace ckpt::restore
