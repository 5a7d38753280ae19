// New namespaces, given the content that an image says.
#pragma once

#include <map>
#include <string>

#include "lib/base/result.h"
#include "lib/state/namespaces/record.h"

namespace ckpt::restore {

/// kUnsupported: what of an image cannot be made again.
Result<void> check_namespaces(const store::Namespaces& namespaces, bool mounts, bool network);

/// Names of the UTS namespace, interfaces of the network namespace: of those in `make`, which this process is in.
Result<void> fill_namespaces(const store::Namespaces& namespaces, const std::map<std::string, bool>& make);

/// A mount namespace, which becomes that of the processes (files/tree_root.h). This process, which sees what ckpt was
/// told the names of, and is in the other namespaces, stays where it is. `root`: where it lies; empty: where it was.
Result<void> make_mounts(const store::Namespaces& namespaces, const std::string& root,
                         const std::map<std::string, std::string>& external);

}  // namespace ckpt::restore
