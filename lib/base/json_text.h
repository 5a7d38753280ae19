// JSON as it is written: for documents too large to be built as a tree first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt {

/// `text` in quotes. Control characters, DEL and C1 controls become \u00XX, lone surrogates (in the three-byte form
/// that Python's pickles have) the text \udXXX, other invalid UTF-8 the replacement character: always valid JSON,
/// harmless on a terminal.
void append_json_string(std::string& out, std::string_view text);
std::string json_string(std::string_view text);
/// `text` in quotes and in ASCII, which comes back from a parser as it was. False, with nothing appended: it is not
/// UTF-8.
[[nodiscard]] bool try_append_ascii_json_string(std::string& out, std::string_view text);
/// Bytes of the UTF-8 character that `text` begins with; 0: with none.
size_t utf8_length(std::string_view text);
/// All of it is UTF-8: what JSON and pickles can hold as text.
bool is_valid_utf8(std::string_view text);

}  // namespace ckpt
