// Tables of text: columns are padded, and on a terminal no wider than it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::cli {

/// Columns that a text in UTF-8 takes on a terminal: two for each wide character (East Asian ones, emoji), none for
/// combining ones.
size_t display_width(std::string_view text);
/// At most so many columns, "..." in the middle where something was cut: names differ at their ends.
std::string elide_middle(const std::string& text, size_t columns);

struct Table {
  std::vector<std::string> header;             ///< none: the first column names what the second says
  std::vector<std::vector<std::string>> rows;  ///< cells that a terminal may see
  std::vector<size_t> right;                   ///< columns that hold numbers: never cut
  std::vector<size_t> verdicts;                ///< columns in which words are coloured, as `with_verdict` has it
};
/// The text, its first word coloured if that says that something is right (green), wrong (red) or to be looked at
/// (yellow).
std::string with_verdict(const std::string& text);
/// Lines of it. `columns` 0: as wide as it gets, for a pipe. Else what is too wide is cut in its longest columns where
/// there is a header, and goes on in the next line where there is none.
std::vector<std::string> lay_out(const Table& table, size_t columns);

/// Columns of the terminal that a stream leads to; 0: it leads elsewhere.
size_t terminal_columns(int fd);

}  // namespace ckpt::cli
