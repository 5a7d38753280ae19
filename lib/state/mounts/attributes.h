// The options of mounts and of file systems, as mountinfo has them: "rw,nosuid,relatime".
#pragma once

#include <sys/mount.h>

#include <functional>
#include <string>
#include <string_view>

#include "lib/state/mounts/record.h"

namespace ckpt::state {

void for_each_option(std::string_view text, const std::function<void(const std::string& word)>& visit);
/// What mountinfo shows of a file system and no mount takes; and what is set once the files are there.
bool is_no_option(const std::string& word, bool in_memory);
/// For mount_setattr(2): those that it has, and no others.
mount_attr attributes_of(const store::Mount& mount);

}  // namespace ckpt::state
