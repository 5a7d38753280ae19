// The escapes in text of pickle protocol 0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt::pickle {

/// Undoes Python's escapes: \u and \U, and unless `unicode_only` (the opcode UNICODE) also \x, octal ones, quotes and
/// the backslash. What is no escape stays as it is. UTF-8; lone surrogates as three bytes each.
std::string unescape(std::string_view text, bool unicode_only);

void append_utf8(std::string& out, uint32_t code_point);

}  // namespace ckpt::pickle
