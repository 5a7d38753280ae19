// Everything of a process that /proc and its descriptors tell from outside, and everything in it that this version cannot
// carry. No thread is stopped and nothing is touched: `check` and the refusals of `dump` come from here.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/procfs.h"
#include "lib/store/process_image.h"

namespace ckpt::capture {

/// One reason why a process cannot be dumped.
struct Blocker {
  std::string subject;  ///< "descriptor 7", "mapping 7f00..-7f01..", "process 12 (sh)"
  std::string what;     ///< "a socket, which is not supported yet"
  std::string flag;     ///< the flag that would allow it, empty when none does
  std::string text() const;
};

struct Inventory;

struct InventoryOptions {
  bool shell_job = false;  ///< terminals and pipes to the outside are taken from the restoring shell
  const Inventory* earlier = nullptr;  ///< of the same process, made while it ran: spares what is slow to find out again
};

struct Inventory {
  /// Filled: ids, names, files, maps (guards excepted), descriptors, limits, credentials, scheduling. Not filled: what only a
  /// stopped thread tells (lib/capture/inside.h).
  store::ProcessImage image;
  std::vector<proc::Vma> vmas;          ///< parallel to image.maps
  std::vector<std::vector<std::byte>> pipe_contents;  ///< parallel to image.pipes
  std::set<std::string> outside_pipes;  ///< pipes with both ends in the process that others have open, too
  std::vector<Blocker> blockers;
  std::vector<std::string> notes;       ///< what a person should know, no obstacle
};

/// kNotFound, kPermission; kUsage for ckpt itself, kUnsupported for kernel threads. `pidfd` names the process for good.
Result<Inventory> take_inventory(int pid, int pidfd, const InventoryOptions& options);

/// False when a mapping that kept its place has other VmFlags than `earlier` says. An inventory made with
/// InventoryOptions::earlier takes them over, because smaps walks every page table (some ms a GiB) and the target stands
/// still for that; asking before and after, while it runs, is as good.
Result<bool> advice_unchanged(int pid, const Inventory& earlier);

/// One Error of kUnsupported that lists every blocker as a cause; the target is as it was.
Error blocked_error(int pid, const std::vector<Blocker>& blockers);

}  // namespace ckpt::capture
