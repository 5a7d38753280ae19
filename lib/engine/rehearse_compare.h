// What an image says of a tree against what was read back from the processes made from it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lib/store/process_image.h"

namespace ckpt::engine {

/// Pure. One line a difference: "process 12: umask: 18 in the image, 2 after the restore". What cannot be the same is
/// passed over: numbers of inodes, memory spaces and offsets in files of the image, the time that timers had left, what
/// external resources give (sessions, groups and parents outside). `strange`: indices of sockets to pass over.
std::vector<std::string> compare_trees(store::TreeImage image, store::TreeImage made, const std::set<size_t>& strange);

/// "process 12 (sh)"
std::string name_of(const store::ProcessImage& process);

}  // namespace ckpt::engine
