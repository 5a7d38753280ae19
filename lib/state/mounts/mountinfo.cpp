#include "lib/state/mounts/mountinfo.h"

#include <sys/sysmacros.h>

#include <charconv>

#include "lib/base/text.h"

namespace ckpt::capture {

namespace {

template <class I>
bool parse(std::string_view text, I& out) {
  return std::from_chars(text.data(), text.data() + text.size(), out).ptr == text.data() + text.size() && !text.empty();
}

bool parse_line(std::string_view line, MountLine& out) {
  unsigned first = 0, second = 0;
  bool ok = parse(take_field(line, ' '), out.id) && parse(take_field(line, ' '), out.parent);
  std::string_view device = take_field(line, ' ');
  ok = ok && parse(take_field(device, ':'), first) && parse(device, second);
  out.device = makedev(first, second);
  out.root = unescape_octal(take_field(line, ' '));
  out.point = unescape_octal(take_field(line, ' '));
  out.options = take_field(line, ' ');
  for (std::string_view field = take_field(line, ' '); field != "-"; field = take_field(line, ' ')) {
    if (line.empty()) return false;
    out.shared = out.shared || field.starts_with("shared:");
    out.slave = out.slave || field.starts_with("master:");
  }
  out.type = take_field(line, ' ');
  out.source = unescape_octal(take_field(line, ' '));
  out.super_options = unescape_octal(line);
  return ok && !out.type.empty() && out.point.starts_with('/');
}

}  // namespace

Result<std::vector<MountLine>> parse_mountinfo(std::string_view text) {
  std::vector<MountLine> out;
  while (!text.empty()) {
    if (!parse_line(take_field(text, '\n'), out.emplace_back()))
      return fail(Code::kIo, "mountinfo", "cannot be understood");
  }
  return out;
}

}  // namespace ckpt::capture
