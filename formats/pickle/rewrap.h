// Editing a pickle at the level of its opcodes, without understanding what it builds (formats.md 3.3).
#pragma once

#include <string>
#include <string_view>

#include "lib/base/result.h"

namespace ckpt::pickle {

/// The pickle of a list that holds what `pickle` builds. Memo numbers stay valid: nothing is memoised before the old
/// body. kCorrupt: not one whole pickle. kUnsupported: protocol 0 or 1.
Result<std::string> wrap_in_list(std::string_view pickle);

/// The pickle of the one element of the list that `pickle` builds. kUnsupported: it is not such a list, or cannot be
/// taken out of it without renumbering the memo.
Result<std::string> unwrap_list(std::string_view pickle);

}  // namespace ckpt::pickle
