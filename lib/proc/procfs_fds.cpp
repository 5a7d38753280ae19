// Descriptors: /proc/PID/fd and fdinfo.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lib/proc/procfs.h"
#include "lib/proc/procfs_internal.h"

namespace ckpt::proc {

namespace {

/// "(seconds, nanoseconds)"
bool parse_timespec(std::string_view text, uint64_t& ns) {
  size_t comma = text.find(',');
  if (comma == std::string_view::npos || text.size() < 4 || text.front() != '(' || text.back() != ')') return false;
  uint64_t seconds = 0, nanos = 0;
  std::string_view second = text.substr(comma + 1, text.size() - comma - 2);
  if (!parse_number(text.substr(1, comma - 1), seconds) || !parse_number(next_word(second), nanos)) return false;
  ns = seconds * 1'000'000'000 + nanos;
  return true;
}

/// "tfd: 5 events: 19 data: 5 pos:0 ino:.. sdev:.."; `value` is what follows "tfd:".
bool parse_epoll_line(std::string_view value, FdInfo::EpollTarget& out) {
  bool ok = parse_number(next_word(value), out.fd);
  while (ok) {
    std::string_view word = next_word(value);
    if (word.empty()) return true;
    if (word == "events:") ok = parse_number(next_word(value), out.events, 16);
    else if (word == "data:") ok = parse_number(next_word(value), out.data, 16);
    else if (word.substr(0, 4) == "ino:") ok = parse_number(word.substr(4), out.inode, 16);
  }
  return ok;
}

}  // namespace

Result<FdInfo> parse_fdinfo(std::string_view text) {
  FdInfo out;
  std::string_view key, value;
  bool ok = true;
  while (ok && next_field(text, key, value)) {
    if (key == "pos") ok = parse_number(value, out.position);
    else if (key == "flags") ok = parse_number(value, out.flags, 8);
    else if (key == "eventfd-count") ok = parse_number(value, out.eventfd_count, 16);
    else if (key == "eventfd-semaphore") out.eventfd_semaphore = value == "1";
    else if (key == "sigmask") ok = parse_number(value, out.signal_mask, 16);
    else if (key == "tfd") ok = parse_epoll_line(value, out.epoll.emplace_back());
    else if (key == "clockid") ok = parse_number(value, out.timer_clock);
    else if (key == "ticks") ok = parse_number(value, out.timer_ticks);
    else if (key == "settime flags") ok = parse_number(value, out.timer_flags, 8);
    else if (key == "it_value") ok = parse_timespec(value, out.timer_value_ns);
    else if (key == "it_interval") ok = parse_timespec(value, out.timer_interval_ns);
    else if (key == "lock") ++out.locks;
    else if (key == "ino") ok = parse_number(value, out.inode);
    else if (key == "mnt_id") ok = parse_number(value, out.mount_id);
    else if (key == "eventfd-id") ok = parse_number(value, out.eventfd_id);
  }
  if (!ok) return malformed("fdinfo");
  return out;
}

Result<FdInfo> read_fdinfo(int pid, int fd) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "fdinfo/" + std::to_string(fd)));
  return parse_fdinfo(text);
}

namespace {

/// Names below an open folder spare the kernel most of the way, thousands of times. `folder`: /proc/PID/fdinfo.
Result<FdInfo> read_fdinfo_at(int folder, const char* name) {
  UniqueFd fd(::openat(folder, name, O_RDONLY | O_CLOEXEC));
  if (!fd) return sys_error(std::string("fdinfo/") + name, "cannot open");
  // The kernel gives the whole of it at once if there is room.
  static thread_local std::array<char, 16 * 1024> room;
  const ssize_t n = ::read(fd.get(), room.data(), room.size());
  if (n < 0) return sys_error(std::string("fdinfo/") + name, "cannot read");
  std::string_view text(room.data(), static_cast<size_t>(n));
  if (text.size() < room.size()) return parse_fdinfo(text);
  CKPT_TRY_ASSIGN(std::string rest, io::read_all(fd.get(), kProcLimit, name));
  return parse_fdinfo(std::string(text) + rest);
}

/// False: it was closed meanwhile.
Result<bool> read_open_fd(int pid, int links, int infos, OpenFd& open) {
  char name[16], link[4096];
  *std::to_chars(name, name + sizeof name - 1, open.fd).ptr = '\0';
  const ssize_t n = ::readlinkat(links, name, link, sizeof link);
  if (n < 0 && errno == ENOENT) return false;
  if (n < 0) return sys_error(proc_path(pid, std::string("fd/") + name), "cannot read the link");
  open.link.assign(link, static_cast<size_t>(n));
  if (infos < 0) return true;
  auto info = read_fdinfo_at(infos, name);
  if (!info && info.error().code == Code::kNotFound) return false;
  if (!info) return std::move(info).error();
  open.info = std::move(*info);
  return true;
}

Result<std::vector<OpenFd>> read_open_fds(int pid, bool with_info) {
  CKPT_TRY_ASSIGN(std::vector<int> numbers, numbers_in(proc_path(pid, "fd")));
  CKPT_TRY_ASSIGN(UniqueFd links, io::open_file(proc_path(pid, "fd"), O_RDONLY | O_DIRECTORY));
  UniqueFd infos;
  if (with_info) {
    CKPT_TRY_ASSIGN(infos, io::open_file(proc_path(pid, "fdinfo"), O_RDONLY | O_DIRECTORY));
  }
  std::vector<OpenFd> out(numbers.size());
  CKPT_TRY(spread(numbers.size(), [&](size_t i) -> Result<void> {
    out[i].fd = numbers[i];
    CKPT_TRY_ASSIGN(bool there, read_open_fd(pid, links.get(), infos.get(), out[i]));
    if (!there) out[i].fd = -1;
    return {};
  }));
  std::erase_if(out, [](const OpenFd& open) { return open.fd < 0; });
  return out;
}

}  // namespace

Result<std::vector<OpenFd>> read_fds(int pid) { return read_open_fds(pid, false); }
Result<std::vector<OpenFd>> read_fds_with_info(int pid) { return read_open_fds(pid, true); }

}  // namespace ckpt::proc
