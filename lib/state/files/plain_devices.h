// null, zero, full, random, urandom: anybody's, and one is as good as the other, of whatever file system.
#pragma once

#include <sys/stat.h>

#include <string>

namespace ckpt::state {

bool is_plain_device(mode_t mode, dev_t number);

/// The name under which every system has it; empty: it is none.
std::string name_of_plain_device(dev_t number);
/// Whether the path is such a name, and leads to that device in ckpt's own root folder: a process of a container often
/// has one that was opened outside, where its own root folder has no /dev.
bool is_own_plain_device(const std::string& path, struct stat& st);

}  // namespace ckpt::state
