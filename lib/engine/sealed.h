// A place in which processes can be made without anything of the real system noticing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::engine {

/// In there, a file system in memory; TMPDIR lies in it. A folder that is everywhere, and that no program has files in.
constexpr const char* kSealedScratch = "/sys/bus";

struct SealOptions {
  int highest = 0;  ///< number that the work wants to give to a process; what it starts otherwise gets others
  std::vector<std::string> written;  ///< files that may be opened for writing: every other file is read-only
  std::vector<std::string> folders;  ///< to be made below kSealedScratch, absolute there
};

/// Runs `work` in a child in new pid, mount, network and ipc namespaces: every file system is read-only, the only
/// interface is "lo", which has every address. `work` is told whether the place could be made, and must give up if not;
/// what it returns (0..255) is returned. All that it leaves there ends with it, and with ckpt, however that ends. Any
/// thread may call this; `work` must not rely on other threads, or on locks that they might hold.
Result<int> run_sealed(const SealOptions& options, const std::function<int(Result<void> sealed)>& work,
                       const Cancel& cancel);

}  // namespace ckpt::engine
