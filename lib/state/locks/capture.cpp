#include "lib/state/locks/capture.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

namespace ckpt::capture {

namespace {

using store::FileLock;
using store::LockKind;

std::string_view next_word(std::string_view& text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return text = {};
  size_t end = std::min(text.find_first_of(" \t", begin), text.size());
  std::string_view word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

bool parse_number(std::string_view text, int64_t& out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

/// "1: POSIX  ADVISORY  WRITE 5283 fe:00:2187288 10 29", the last word also EOF.
Result<FileLock> parse_lock(std::string_view line) {
  std::string_view rest = line;
  auto malformed = [&] {
    return fail(Code::kIo, "fdinfo", fmt::format("lock \"{}\" is not in a form that this ckpt knows", line));
  };
  FileLock out;
  (void)next_word(rest);  // a running number
  std::string_view kind = next_word(rest), state = next_word(rest), mode = next_word(rest);
  if (kind == "DELEG") return fail(Code::kUnsupported, "", "holds a delegation (of NFS), which is not supported");
  if (kind == "LEASE" && state != "ACTIVE")
    return fail(Code::kBusy, "", "holds a lease that somebody waits for, until the process gives it up");
  if (kind == "FLOCK")
    out.kind = LockKind::kFlock;
  else if (kind == "POSIX")
    out.kind = LockKind::kPosix;
  else if (kind == "OFDLCK")
    out.kind = LockKind::kOfd;
  else if (kind == "LEASE")
    out.kind = LockKind::kLease;
  else
    return malformed();
  if (mode != "READ" && mode != "WRITE") return malformed();
  out.write = mode == "WRITE";
  (void)next_word(rest);  // pid
  (void)next_word(rest);  // device and inode
  std::string_view start = next_word(rest), last = next_word(rest);
  if (!parse_number(start, out.start) || out.start < 0) return malformed();
  if (last != "EOF" && (!parse_number(last, out.last) || out.last < out.start)) return malformed();
  return out;
}

}  // namespace

Result<std::vector<FileLock>> parse_locks(std::string_view fdinfo) {
  constexpr std::string_view kPrefix = "lock:";
  std::vector<FileLock> out;
  while (!fdinfo.empty()) {
    size_t end = std::min(fdinfo.find('\n'), fdinfo.size());
    std::string_view line = fdinfo.substr(0, end);
    fdinfo.remove_prefix(std::min(end + 1, fdinfo.size()));
    if (line.substr(0, kPrefix.size()) != kPrefix) continue;
    CKPT_TRY_ASSIGN(FileLock lock, parse_lock(line.substr(kPrefix.size())));
    out.push_back(lock);
  }
  return out;
}

}  // namespace ckpt::capture
