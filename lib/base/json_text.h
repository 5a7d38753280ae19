// JSON as it is written: for documents too large to be built as a tree first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt {

/// `text` in quotes. Control characters, DEL and C1 controls become \u00XX, lone surrogates (in the three-byte form that
/// Python's pickles have) the text \udXXX, other invalid UTF-8 the replacement character: always valid JSON, harmless on a terminal.
void append_json_string(std::string& out, std::string_view text);
std::string json_string(std::string_view text);

}  // namespace ckpt
