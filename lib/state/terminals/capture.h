// Pseudo-terminals of a tree, from duplicates of its descriptors.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/terminals/record.h"

namespace ckpt::capture {

/// What an open file is: nothing when it is no terminal at all.
struct TerminalFile {
  store::TerminalSide side = store::TerminalSide::kSlave;
  int index = -1;  ///< of /dev/pts/INDEX; -1: a console, a serial line, or not to be known any more
  bool hung_up = false;
};
Result<std::optional<TerminalFile>> identify_terminal(int fd);

struct TerminalsFound {
  std::vector<store::Terminal> terminals;
  std::vector<store::TerminalEnd> ends;  ///< parallel to `fds`; terminal -1: its master is outside of the tree
  std::vector<size_t> adopted;           ///< terminals whose master is outside: of no session as far as is known
  std::vector<std::pair<size_t, std::string>> refused;  ///< (index into `fds`, why it cannot be carried)
  std::vector<std::string> notes;
};

/// `fds`: one duplicate for each open file description of the tree that is a terminal. With `frozen` what waits in the
/// terminals is copied too, for which every process that uses them must stand still: it is taken out and put back.
/// Nothing else is touched. `adopt`: terminals whose master is outside as well, but for what waits in them.
Result<TerminalsFound> describe_terminals(const std::vector<int>& fds, bool frozen, bool adopt = false);

/// Who, of the processes that are not in `tree` (sorted), has the slave of one of these terminals open or is controlled
/// by it: (index, "12 (sh)"). A terminal of that number in another devpts is another one. The end of the tree would
/// hang up on it. Looks through all of /proc: while the tree runs.
std::vector<std::pair<int, std::string>> outside_users_of_terminals(const std::vector<store::Terminal>& terminals,
                                                                    const std::vector<int>& tree);

}  // namespace ckpt::capture
