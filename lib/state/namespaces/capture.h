// The namespaces of a tree, which this process has entered (entered.h).
#pragma once

#include "lib/state/walk.h"

namespace ckpt::capture {

/// Fills TreeImage::namespaces.
Result<void> inventory_namespaces(Walk& walk);

/// What others in a pid namespace within the first process's would learn of a peer there, and will not. Once all
/// sockets are known.
void note_inner_credentials(Walk& walk);

/// Fills Namespaces::further and ProcessImage::namespaces. After inventory_sharing.
Result<void> inventory_further(Walk& walk);

}  // namespace ckpt::capture
