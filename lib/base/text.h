// Text for people: names from files made harmless for a terminal, sizes with units, key globs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt {

/// Control characters, DEL, C1 controls and invalid UTF-8 become \xNN, so that no name can drive a terminal.
std::string escape_for_terminal(std::string_view text);
/// Undoes what the kernel does to paths in /proc: blanks, newlines and backslashes stand there as \ and three octal
/// digits.
std::string unescape_octal(std::string_view text);
/// Cuts off `rest` what stands before the separator, and the separator; all of it where there is none.
std::string_view take_field(std::string_view& rest, char separator);
/// "1.5 GiB", "640 B": three significant digits, binary units.
std::string human_bytes(uint64_t bytes);
/// "1.234 ms", "2.5 s" from microseconds.
std::string human_us(uint64_t us);
/// Key globs: `*` matches inside one dot-separated part, `**` across parts, `?` one character that is not a dot,
/// `[abc]` a set. Linear time: no pattern makes it blow up.
bool glob_match(std::string_view pattern, std::string_view key);

}  // namespace ckpt
