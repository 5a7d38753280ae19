// JSON for people: what fits on a line stays on one line.
#pragma once

#include <string>
#include <string_view>

namespace ckpt {

/// Breaks and indents compact JSON, which must be valid and without white space: an object or array that fits into
/// `width` columns takes one line, long arrays of scalars are filled line by line. Ends with a newline.
std::string lay_out_json(std::string_view compact, size_t width = 120);

}  // namespace ckpt
