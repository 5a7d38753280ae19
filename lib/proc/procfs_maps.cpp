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

bool Vma::has_flag(std::string_view flag) const {
  constexpr size_t kStep = 3;
  for (size_t at = 0; at + 2 <= flags.size(); at += kStep) {
    if (std::string_view(flags).substr(at, 2) == flag) return true;
  }
  return false;
}

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


/// One line of maps or smaps; false: it is malformed.
bool take_maps_line(std::string_view line, std::vector<Vma>& out) {
  if (line.empty()) return true;
  // A mapping's line begins with a lower-case hex digit, smaps' members with an upper-case letter.
  const bool is_map = (line[0] >= '0' && line[0] <= '9') || (line[0] >= 'a' && line[0] <= 'f');
  if (is_map) return parse_map_line(line, out.emplace_back());
  if (out.empty()) return true;
  constexpr std::string_view kKey = "ProtectionKey:", kFlags = "VmFlags:";
  if (line[0] == 'P' && line.substr(0, kKey.size()) == kKey) {
    std::string_view rest = line.substr(kKey.size()), word = next_word(rest);
    std::from_chars(word.data(), word.data() + word.size(), out.back().protection_key);
  } else if (line[0] == 'V' && line.substr(0, kFlags.size()) == kFlags) {
    std::string& flags = out.back().flags;
    line.remove_prefix(std::min(line.find_first_not_of(' ', kFlags.size()), line.size()));
    flags = line;
    if (!flags.empty() && flags.back() != ' ') flags += ' ';
  }
  return true;
}

}  // namespace

Result<std::vector<Vma>> parse_maps(std::string_view text) {
  std::vector<Vma> out;
  while (!text.empty()) {
    if (!take_maps_line(next_line(text), out)) return malformed("maps");
  }
  return out;
}

Result<std::vector<Vma>> read_maps(int pid, bool with_flags) {
  // Line by line: smaps of 10,000 mappings has 7 MB, which would be fresh memory.
  const std::string path = proc_path(pid, with_flags ? "smaps" : "maps");
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_RDONLY));
  std::vector<Vma> out;
  std::vector<char> room(64 * 1024);
  for (size_t used = 0;;) {
    if (used == room.size()) room.resize(2 * room.size());
    const ssize_t n = ::read(fd.get(), room.data() + used, room.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error(path, "cannot read");
    if (n == 0 && used != 0) return malformed("maps");
    if (n == 0) return out;
    std::string_view text(room.data(), used + static_cast<size_t>(n));
    for (size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
      if (!take_maps_line(text.substr(0, end), out)) return malformed("maps");
    }
    used = text.size();
    std::memmove(room.data(), text.data(), used);
  }
}

}  // namespace ckpt::proc
