// How an end of a terminal is shown.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "lib/state/terminals/record.h"

namespace ckpt::state {

inline std::string show(const store::TerminalEnd& end, const std::vector<store::Terminal>& terminals) {
  if (end.terminal < 0) return "";
  const char* side = end.side == store::TerminalSide::kMaster ? "master of " : "";
  return fmt::format("{}/dev/pts/{}", side, terminals[static_cast<size_t>(end.terminal)].index);
}

}  // namespace ckpt::state
