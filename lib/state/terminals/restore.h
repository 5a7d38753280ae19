// Pseudo-terminals made again under their old numbers.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/reasons.h"
#include "lib/state/terminals/record.h"
#include "lib/state/tree/syscall_batch.h"

namespace ckpt::restore {

/// kBusy where `make_terminals` would say so, without making one.
void check_terminals(const std::vector<store::Terminal>& terminals, Reasons& reasons);

/// Makes every terminal in ckpt, with settings and content, and opens each end once with the flags (access mode,
/// O_NONBLOCK) of its description. The result is parallel to `ends`; one that failed is empty and its reason is in
/// `reasons`: kBusy where the number is taken. Foreground group and session come later. `take_master` is given the
/// master of each terminal that had it outside of the tree; where it is empty that is a reason against.
std::vector<UniqueFd> make_terminals(const std::vector<store::Terminal>& terminals,
                                     const std::vector<std::pair<store::TerminalEnd, int>>& ends, Reasons& reasons,
                                     const std::function<Result<void>(int master)>& take_master = {});

/// Makes the terminal behind `slave` (an inherited descriptor, or one in its place, that is not hung up) the
/// controlling one. By the leader of the session, after setsid and before it makes the processes that share the
/// session: they get it with fork and in no other way.
void take_controlling_terminal(int slave, SyscallBatch& batch);
/// For a process of a session with a terminal that has none itself (TIOCNOTTY; tty_nr 0), but not for the leader.
void give_up_controlling_terminal(int slave, SyscallBatch& batch);
/// By the leader, once the process groups of the session exist; SIGTTOU is blocked. A group that had no process left is
/// left out: nobody can name one.
/// `group`: as the process numbers it; 0: none.
void set_foreground_group(int group, int slave, RestorerArea& area, SyscallBatch& batch);

}  // namespace ckpt::restore
