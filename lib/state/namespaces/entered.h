// The namespaces of a tree that lives in others than whoever ran ckpt: this process, ckpt's worker, has entered them
// (lib/engine/beside.h), but for the mount namespace, in which it only looks names up (files/tree_root.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::state {

struct Entered {
  /// Process 1 is a ckpt, which knows what to do with whose parent has ended. Another one must not hear of ckpt's own.
  bool init_is_ckpts = false;
  std::vector<std::string> kinds;  ///< as in /proc/PID/ns: those that the tree has of its own; empty: not to be told of
  /// Those that whoever ran ckpt is in, as links of /proc/PID/ns: "uts:[4026531838]".
  std::vector<std::string> callers;
  /// Ends the first process of the pid namespace, which nobody inside may; with it everything there ends, this process
  /// too: it returns only where that failed. Empty: the tree does not have it.
  std::function<Result<void>()> end_init;
  /// Told just before the tree is ended: the first process of the pid namespace may end with it, and this one then.
  /// Empty: that cannot happen.
  std::function<void()> may_end;
};

/// For the rest of this process's life.
void set_entered(Entered entered);
/// Null: none.
const Entered* entered();
/// Processes of ckpt's own that are to stay are made as siblings of this one, whose parent is outside.
bool stays_as_sibling();

}  // namespace ckpt::state
