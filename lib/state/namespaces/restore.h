// New namespaces, given the content that an image says.
#pragma once

#include <map>
#include <string>

#include "lib/base/result.h"
#include "lib/state/network/links.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// kUnsupported: what of an image cannot be made again; kUsage, kBusy, kNotFound: ends of veths outside. In the network
/// namespace where these are to be. `network`: a new network namespace is made.
Result<void> check_namespaces(const store::Namespaces& namespaces, bool network,
                              const state::NetworkOptions& options);

/// Of the UTS namespace that this process is in.
Result<void> set_host_names(const std::string& host, const std::string& domain);

/// Names of the UTS namespace, all of the network namespace: of those in `make`, which this process is in. `outside`:
/// where the other ends of veths go.
Result<void> fill_namespaces(const store::TreeImage& tree, const std::map<std::string, bool>& make,
                             const state::NetworkOptions& options, state::Outside* outside);

/// Of the namespaces that are not the first process's (further.h). kCorrupt; kUnsupported: what cannot be made.
/// `joins`: the first process goes to a mount namespace that is there.
Result<void> check_further(const store::TreeImage& tree, bool joins);

/// Makes them, and calls state::set_further. While /proc and mounts are still those of ckpt's caller, and there are no
/// other threads.
Result<void> make_further(const store::TreeImage& tree, const std::string& boot_id, bool dry_run);
/// Gives them their names, limits and networks.
Result<void> fill_further(const store::TreeImage& tree);

}  // namespace ckpt::restore
