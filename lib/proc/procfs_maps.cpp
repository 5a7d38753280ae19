// Mappings: /proc/PID/maps and smaps.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lib/proc/procfs.h"
#include "lib/proc/procfs_internal.h"

namespace ckpt::proc {

constexpr size_t kFlagLetters = 2;

bool Vma::has_flag(std::string_view flag) const {
  for (size_t at = 0; at < flags.size(); at += kFlagLetters) {
    if (std::string_view(flags).substr(at, kFlagLetters) == flag) return true;
  }
  return false;
}

namespace {

/// Cuts a number and the character behind it off `line`.
template <class T>
bool take_number(std::string_view& line, T& out, int base, char behind) {
  const auto [end, ec] = std::from_chars(line.data(), line.data() + line.size(), out, base);
  const auto length = static_cast<size_t>(end - line.data());
  if (ec != std::errc() || length == line.size() || *end != behind) return false;
  line.remove_prefix(length + 1);
  return true;
}

bool take_permissions(std::string_view& line, Vma& out) {
  constexpr size_t kLength = 4;
  if (line.size() <= kLength || line[kLength] != ' ') return false;
  out.prot = (line[0] == 'r' ? PROT_READ : 0) | (line[1] == 'w' ? PROT_WRITE : 0) | (line[2] == 'x' ? PROT_EXEC : 0);
  out.shared = line[3] == 's';
  line.remove_prefix(kLength + 1);
  return true;
}

void set_name(std::string_view name, Vma& out) {
  out.name = name;
  for (size_t at = 0; (at = out.name.find("\\012", at)) != std::string::npos; ++at) out.name.replace(at, 4, "\n");
}

/// "start-end rwxp offset major:minor inode   name"
bool parse_map_line(std::string_view line, Vma& out) {
  unsigned major_number = 0, minor_number = 0;
  const bool ok = take_number(line, out.start, 16, '-') && take_number(line, out.end, 16, ' ') &&
                  take_permissions(line, out) && take_number(line, out.offset, 16, ' ') &&
                  take_number(line, major_number, 16, ':') && take_number(line, minor_number, 16, ' ');
  if (!ok) return false;
  out.device = makedev(major_number, minor_number);
  const auto [end, ec] = std::from_chars(line.data(), line.data() + line.size(), out.inode);
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  if (ec != std::errc() || (!line.empty() && line[0] != ' ')) return false;
  const size_t begin = line.find_first_not_of(' ');
  if (begin != std::string_view::npos) set_name(line.substr(begin), out);
  return true;
}

/// "rd wr mr "
bool take_flags(std::string_view line, std::string& out) {
  for (size_t at = 0; at < line.size(); ++at) {
    if (line[at] == ' ') continue;
    const size_t end = at + kFlagLetters;
    if (end > line.size() || (end < line.size() && line[end] != ' ')) return false;
    out.append(line, at, kFlagLetters);
    at = end - 1;
  }
  return true;
}

/// A mapping's line begins with a lower-case hex digit, smaps' members with an upper-case letter.
bool is_map_line(std::string_view line) {
  return !line.empty() && ((line[0] >= '0' && line[0] <= '9') || (line[0] >= 'a' && line[0] <= 'f'));
}

/// One line of maps or smaps, of the mapping `out`; false: it is malformed.
bool take_line(std::string_view line, Vma& out) {
  if (line.empty()) return true;
  if (is_map_line(line)) return parse_map_line(line, out);
  constexpr std::string_view kKey = "ProtectionKey:", kFlags = "VmFlags:";
  if (line[0] == 'P' && line.substr(0, kKey.size()) == kKey) {
    std::string_view rest = line.substr(kKey.size()), word = next_word(rest);
    std::from_chars(word.data(), word.data() + word.size(), out.protection_key);
  } else if (line[0] == 'V' && line.substr(0, kFlags.size()) == kFlags) {
    return take_flags(line.substr(kFlags.size()), out.flags);
  }
  return true;
}

}  // namespace

Result<std::vector<Vma>> parse_maps(std::string_view text) {
  std::vector<Vma> out;
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    if (is_map_line(line)) out.emplace_back();
    if (!out.empty() && !take_line(line, out.back())) return malformed("maps");
  }
  return out;
}

namespace {

/// Up to the newline of the first line; npos: it has none. Almost all lines of smaps are of one length, and need no
/// search.
size_t length_of_line(std::string_view text) {
  constexpr std::string_view kEnd = " kB\n";
  constexpr size_t kLength = 27;  // "Shared_Clean:" and the like in 16 columns, a number in 8, " kB"
  const bool is_amount = text.size() > kLength && text[0] >= 'A' && text[0] <= 'Z' &&
                         text.substr(kLength + 1 - kEnd.size(), kEnd.size()) == kEnd;
  return is_amount ? kLength : text.find('\n');
}

}  // namespace

Result<void> each_mapping(int pid, bool with_flags, const std::function<void(Vma&)>& take) {
  // Line by line: smaps of 10,000 mappings has 7 MB, which would be fresh memory.
  const std::string path = proc_path(pid, with_flags ? "smaps" : "maps");
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_RDONLY));
  Vma vma;
  bool is_open = false;  // its lines are still coming
  std::vector<char> room(64 * 1024);
  for (size_t used = 0;;) {
    if (used == room.size()) room.resize(2 * room.size());
    const ssize_t n = ::read(fd.get(), room.data() + used, room.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error(path, "cannot read");
    if (n == 0 && used != 0) return malformed("maps");
    if (n == 0) break;
    std::string_view text(room.data(), used + static_cast<size_t>(n));
    for (size_t end; (end = length_of_line(text)) != std::string_view::npos; text.remove_prefix(end + 1)) {
      const std::string_view line = text.substr(0, end);
      if (is_map_line(line)) {
        if (is_open) take(vma);
        vma = {}, is_open = true;
      }
      if (!take_line(line, vma)) return malformed("maps");
    }
    used = text.size();
    std::memmove(room.data(), text.data(), used);
  }
  if (is_open) take(vma);
  return {};
}

Result<std::vector<Vma>> read_maps(int pid, bool with_flags, size_t expected) {
  std::vector<Vma> out;
  out.reserve(expected + expected / 64);
  CKPT_TRY(each_mapping(pid, with_flags, [&](Vma& vma) { out.push_back(std::move(vma)); }));
  return out;
}

}  // namespace ckpt::proc
