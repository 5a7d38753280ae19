// New namespaces, given the content that an image says.
#pragma once

#include <map>
#include <string>

#include "lib/base/result.h"
#include "lib/state/namespaces/record.h"

namespace ckpt::restore {

/// kUnsupported: what of an image cannot be made again.
Result<void> check_namespaces(const store::Namespaces& namespaces, bool network);

/// Names of the UTS namespace, interfaces of the network namespace: of those in `make`, which this process is in.
Result<void> fill_namespaces(const store::Namespaces& namespaces, const std::map<std::string, bool>& make);

}  // namespace ckpt::restore
