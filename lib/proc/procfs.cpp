#include "lib/proc/procfs.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "lib/base/io.h"

namespace ckpt::proc {

namespace {

std::string proc_path(int pid, const std::string& name) { return "/proc/" + std::to_string(pid) + "/" + name; }

constexpr uint64_t kProcLimit = uint64_t{512} << 20;

Result<std::string> read_proc(int pid, const std::string& name) {
  return io::read_file(proc_path(pid, name), kProcLimit);
}

Error malformed(const char* what) { return Error(Code::kIo, what, "is not in the form that this ckpt knows"); }

template <class T>
bool parse_number(std::string_view text, T& out, int base = 10) {
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return ec == std::errc() && end == text.data() + text.size();
}

/// Cuts the next blank-separated word off `text`.
std::string_view next_word(std::string_view& text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) {
    text = {};
    return {};
  }
  size_t end = text.find_first_of(" \t", begin);
  std::string_view word = text.substr(begin, end == std::string_view::npos ? end : end - begin);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end);
  return word;
}

std::string_view next_line(std::string_view& text) {
  size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return line;
}

/// "Key:\tvalue" lines. `value` has no leading blanks.
bool next_field(std::string_view& text, std::string_view& key, std::string_view& value) {
  while (!text.empty()) {
    std::string_view line = next_line(text);
    size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    key = line.substr(0, colon);
    value = line.substr(colon + 1);
    size_t begin = value.find_first_not_of(" \t");
    value = begin == std::string_view::npos ? std::string_view() : value.substr(begin);
    return true;
  }
  return false;
}

template <class T>
bool parse_list(std::string_view value, std::vector<T>& out) {
  for (std::string_view word = next_word(value); !word.empty(); word = next_word(value)) {
    if (!parse_number(word, out.emplace_back())) return false;
  }
  return true;
}

bool parse_ids(std::string_view value, unsigned (&to)[4]) {
  for (unsigned& id : to) {
    if (!parse_number(next_word(value), id)) return false;
  }
  return true;
}

}  // namespace

Result<Stat> parse_stat(std::string_view text) {
  // The name may hold blanks and parentheses: it ends at the last ')'.
  size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return malformed("stat");
  Stat out;
  std::string_view head = text.substr(0, open), rest = text.substr(close + 1);
  if (!parse_number(next_word(head), out.pid)) return malformed("stat");
  out.comm = text.substr(open + 1, close - open - 1);
  rest = next_line(rest);
  std::string_view state = next_word(rest);
  if (state.size() != 1) return malformed("stat");
  out.state = state[0];
  uint64_t field[53] = {};
  for (int i = 4; i <= 52; ++i) {
    std::string_view word = next_word(rest);
    if (word.empty()) break;
    int64_t negative = 0;
    if (word[0] == '-' ? !parse_number(word, negative) : !parse_number(word, field[i])) return malformed("stat");
    if (word[0] == '-') field[i] = static_cast<uint64_t>(negative);
  }
  auto as_int = [&](int i) { return static_cast<int>(field[i]); };
  out.parent = as_int(4), out.group = as_int(5), out.session = as_int(6), out.terminal = as_int(7);
  out.kernel_flags = field[9], out.start_time = field[22];
  out.start_code = field[26], out.end_code = field[27], out.start_stack = field[28];
  out.start_data = field[45], out.end_data = field[46], out.start_brk = field[47];
  out.arg_start = field[48], out.arg_end = field[49], out.env_start = field[50], out.env_end = field[51];
  out.exit_signal = as_int(38), out.exit_status = as_int(52);
  return out;
}

Result<Stat> read_stat(int pid) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "stat"));
  return parse_stat(text);
}

Result<Stat> read_thread_stat(int pid, int tid) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "task/" + std::to_string(tid) + "/stat"));
  return parse_stat(text);
}

namespace {

/// The kernel writes a newline as "\\n" and a backslash as "\\\\".
std::string unescape_name(std::string_view value) {
  std::string out;
  for (size_t i = 0; i < value.size(); ++i) {
    const bool escaped = value[i] == '\\' && i + 1 < value.size();
    if (escaped) ++i;
    out += escaped && value[i] == 'n' ? '\n' : value[i];
  }
  return out;
}

}  // namespace

Result<Status> parse_status(std::string_view text) {
  Status out;
  std::string_view key, value;
  auto hex = [&](uint64_t& to) { return parse_number(value, to, 16); };
  bool ok = true;
  while (ok && next_field(text, key, value)) {
    if (key == "Name") out.comm = unescape_name(value);
    else if (key == "State") out.state = value.empty() ? '?' : value[0];
    else if (key == "Tgid") ok = parse_number(value, out.tgid);
    else if (key == "PPid") ok = parse_number(value, out.parent);
    else if (key == "TracerPid") ok = parse_number(value, out.tracer);
    else if (key == "Uid") ok = parse_ids(value, out.uid);
    else if (key == "Gid") ok = parse_ids(value, out.gid);
    else if (key == "Groups") ok = parse_list(value, out.groups);
    else if (key == "NSpid") ok = parse_list(value, out.ns_pids);
    else if (key == "Threads") ok = parse_number(value, out.threads);
    else if (key == "SigPnd") ok = hex(out.pending_private);
    else if (key == "ShdPnd") ok = hex(out.pending_shared);
    else if (key == "SigBlk") ok = hex(out.blocked);
    else if (key == "SigIgn") ok = hex(out.ignored);
    else if (key == "SigCgt") ok = hex(out.caught);
    else if (key == "CapInh") ok = hex(out.cap_inheritable);
    else if (key == "CapPrm") ok = hex(out.cap_permitted);
    else if (key == "CapEff") ok = hex(out.cap_effective);
    else if (key == "CapBnd") ok = hex(out.cap_bounding);
    else if (key == "CapAmb") ok = hex(out.cap_ambient);
    else if (key == "NoNewPrivs") out.no_new_privs = value == "1";
    else if (key == "Seccomp") ok = parse_number(value, out.seccomp);
    else if (key == "Umask") ok = parse_number(value, out.umask, 8);
    else if (key == "THP_enabled") out.thp_enabled = value == "1";
  }
  if (!ok) return malformed("status");
  return out;
}

Result<Status> read_status(int pid, int tid) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "task/" + std::to_string(tid) + "/status"));
  return parse_status(text);
}

bool Vma::has_flag(std::string_view flag) const { return std::find(flags.begin(), flags.end(), flag) != flags.end(); }

namespace {

/// "start-end rwxp offset major:minor inode   name"
bool parse_map_line(std::string_view line, Vma& out) {
  std::string_view range = next_word(line), perms = next_word(line), offset = next_word(line), device = next_word(line),
                   inode = next_word(line);
  size_t dash = range.find('-'), colon = device.find(':');
  if (dash == std::string_view::npos || colon == std::string_view::npos || perms.size() != 4) return false;
  unsigned major_number = 0, minor_number = 0;
  bool ok = parse_number(range.substr(0, dash), out.start, 16) && parse_number(range.substr(dash + 1), out.end, 16) &&
            parse_number(offset, out.offset, 16) && parse_number(inode, out.inode) &&
            parse_number(device.substr(0, colon), major_number, 16) &&
            parse_number(device.substr(colon + 1), minor_number, 16);
  if (!ok) return false;
  out.prot = (perms[0] == 'r' ? PROT_READ : 0) | (perms[1] == 'w' ? PROT_WRITE : 0) | (perms[2] == 'x' ? PROT_EXEC : 0);
  out.shared = perms[3] == 's';
  out.device = makedev(major_number, minor_number);
  size_t begin = line.find_first_not_of(' ');
  if (begin == std::string_view::npos) return true;
  out.name = line.substr(begin);
  for (size_t at = 0; (at = out.name.find("\\012", at)) != std::string::npos; ++at) out.name.replace(at, 4, "\n");
  return true;
}

}  // namespace

Result<std::vector<Vma>> parse_maps(std::string_view text) {
  std::vector<Vma> out;
  while (!text.empty()) {
    std::string_view line = next_line(text);
    if (line.empty()) continue;
    // A mapping's line begins with a lower-case hex digit, smaps' members with an upper-case letter.
    bool is_map = (line[0] >= '0' && line[0] <= '9') || (line[0] >= 'a' && line[0] <= 'f');
    if (is_map) {
      if (!parse_map_line(line, out.emplace_back())) return malformed("maps");
    } else if (line.substr(0, 14) == "ProtectionKey:" && !out.empty()) {
      std::string_view rest = line.substr(14), word = next_word(rest);
      std::from_chars(word.data(), word.data() + word.size(), out.back().protection_key);
    } else if (line.substr(0, 8) == "VmFlags:" && !out.empty()) {
      std::string_view rest = line.substr(8);
      for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest)) {
        out.back().flags.emplace_back(word);
      }
    }
  }
  return out;
}

Result<std::vector<Vma>> read_maps(int pid, bool with_flags) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, with_flags ? "smaps" : "maps"));
  return parse_maps(text);
}

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
  }
  if (!ok) return malformed("fdinfo");
  return out;
}

Result<FdInfo> read_fdinfo(int pid, int fd) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "fdinfo/" + std::to_string(fd)));
  return parse_fdinfo(text);
}

namespace {

/// The names in a folder that are decimal numbers, sorted.
Result<std::vector<int>> numbers_in(const std::string& path) {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (!dir) return sys_error(path, "cannot list");
  std::vector<int> out;
  while (const dirent* entry = ::readdir(dir.get())) {
    int number = 0;
    if (parse_number(std::string_view(entry->d_name), number)) out.push_back(number);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

Result<std::vector<OpenFd>> read_fds(int pid) {
  CKPT_TRY_ASSIGN(std::vector<int> numbers, numbers_in(proc_path(pid, "fd")));
  std::vector<OpenFd> out;
  for (int fd : numbers) {
    auto link = read_link(pid, "fd/" + std::to_string(fd));
    if (!link && link.error().sys_errno == ENOENT) continue;  // closed meanwhile
    if (!link) return std::move(link).error();
    out.push_back({fd, std::move(*link)});
  }
  return out;
}

Result<std::vector<TimerLine>> parse_timers(std::string_view text) {
  std::vector<TimerLine> out;
  std::string_view key, value;
  bool ok = true;
  while (ok && next_field(text, key, value)) {
    if (key == "ID") {
      ok = parse_number(value, out.emplace_back().id);
      continue;
    }
    if (out.empty()) return malformed("timers");
    TimerLine& timer = out.back();
    if (key == "signal") {  // "14/0000000000000000": number, sigval
      size_t slash = value.find('/');
      ok = slash != std::string_view::npos && parse_number(value.substr(0, slash), timer.signo) &&
           parse_number(value.substr(slash + 1), timer.sigval, 16);
    } else if (key == "notify") {  // "signal/pid.77", "none/tid.77", "thread/pid.77"
      size_t slash = value.find('/'), dot = value.find('.');
      if (slash == std::string_view::npos || dot == std::string_view::npos || dot < slash) return malformed("timers");
      std::string_view how = value.substr(0, slash), whom = value.substr(slash + 1, dot - slash - 1);
      timer.notify = how == "none" ? 1 : how == "thread" ? 2 : 0;
      ok = parse_number(value.substr(dot + 1), timer.tid);
      if (whom == "tid") timer.notify |= 4;
    } else if (key == "ClockID") {
      ok = parse_number(value, timer.clock);
    }
  }
  if (!ok) return malformed("timers");
  return out;
}

Result<std::vector<TimerLine>> read_timers(int pid) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "timers"));
  return parse_timers(text);
}

Result<std::vector<int>> read_threads(int pid) { return numbers_in(proc_path(pid, "task")); }

Result<std::vector<int>> read_children(int pid) {
  CKPT_TRY_ASSIGN(std::vector<int> tids, read_threads(pid));
  std::vector<int> out;
  for (int tid : tids) {
    auto text = read_proc(pid, "task/" + std::to_string(tid) + "/children");
    if (text) {
      if (!parse_list(std::string_view(*text), out)) return malformed("children");
    } else if (read_thread_stat(pid, tid)) {  // else that thread has ended
      return std::move(text).error();
    }
  }
  return out;
}

Result<std::vector<TreeEntry>> read_tree(int root) {
  CKPT_TRY_ASSIGN(Stat stat, read_stat(root));
  std::vector<TreeEntry> out = {{root, -1, stat.is_zombie()}};
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].zombie) continue;
    auto children = read_children(out[i].pid);
    if (!children && children.error().code == Code::kNotFound) continue;  // it has ended since
    if (!children) return std::move(children).error();
    for (int child : *children) {
      auto found = read_stat(child);
      if (!found || found->parent != out[i].pid) continue;
      out.push_back({child, static_cast<int>(i), found->is_zombie()});
    }
  }
  return out;
}

Result<std::vector<std::string>> read_cmdline(int pid) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "cmdline"));
  std::vector<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\0', begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

Result<std::vector<uint64_t>> read_auxv(int pid) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "auxv"));
  std::vector<uint64_t> out(text.size() / sizeof(uint64_t));
  std::memcpy(out.data(), text.data(), out.size() * sizeof(uint64_t));
  return out;
}

Result<std::string> read_small(int pid, const std::string& name) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, name));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Result<std::string> read_link(int pid, const std::string& name) {
  std::string path = proc_path(pid, name);
  char out[4096];
  ssize_t n = ::readlink(path.c_str(), out, sizeof out);
  if (n < 0) return sys_error(path, "cannot read the link");
  return std::string(out, static_cast<size_t>(n));
}

std::string describe_pid(int pid) {
  auto stat = read_stat(pid);
  return std::to_string(pid) + (stat ? " (" + stat->comm + ")" : "");
}

}  // namespace ckpt::proc
