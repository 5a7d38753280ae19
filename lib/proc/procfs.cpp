#include "lib/proc/procfs.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lib/proc/own_helpers.h"
#include "lib/proc/procfs_internal.h"

namespace ckpt::proc {

namespace {

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
  out.kernel_flags = field[9], out.minor_faults = field[10], out.start_time = field[22];
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

bool has_ended(int pid) {
  auto stat = read_stat(pid);
  return !stat || stat->is_ending();
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
    else if (key == "NSpgid") ok = parse_list(value, out.ns_groups);
    else if (key == "NSsid") ok = parse_list(value, out.ns_sessions);
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
    else if (key == "VmPin") out.has_pinned_pages = value.substr(0, 2) != "0 ";
  }
  if (!ok) return malformed("status");
  return out;
}

Result<std::vector<std::optional<Status>>> read_statuses(int pid, const std::vector<int>& tids) {
  std::vector<std::optional<Status>> out(tids.size());
  CKPT_TRY(spread(tids.size(), [&](size_t i) -> Result<void> {
    auto status = read_status(pid, tids[i]);
    if (!status && status.error().code != Code::kNotFound) return std::move(status).error();
    if (status) out[i] = std::move(*status);
    return {};
  }));
  return out;
}

Result<Status> read_status(int pid, int tid) {
  CKPT_TRY_ASSIGN(std::string text, read_proc(pid, "task/" + std::to_string(tid) + "/status"));
  return parse_status(text);
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
  std::vector<std::vector<int>> of_thread(tids.size());
  CKPT_TRY(spread(tids.size(), [&](size_t i) -> Result<void> {
    auto text = read_proc(pid, "task/" + std::to_string(tids[i]) + "/children");
    if (text) {
      if (!parse_list(std::string_view(*text), of_thread[i])) return malformed("children");
    } else if (read_thread_stat(pid, tids[i])) {  // else that thread has ended
      return std::move(text).error();
    }
    return {};
  }));
  std::vector<int> out;
  for (const std::vector<int>& some : of_thread) out.insert(out.end(), some.begin(), some.end());
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
      // An orphan of ckpt's is the child of a target that is the init of ckpt's pid namespace.
      if (!found || found->parent != out[i].pid || is_own_helper(child, found->comm)) continue;
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
