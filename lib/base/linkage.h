// How this ckpt was linked, and what it does without where it brings its own C library.
#pragma once

#include <string>

#include "lib/base/result.h"

namespace ckpt {

/// Whether the C library is part of this program, which then starts on hosts that have none.
bool linked_statically();

/// To be asked before dlopen: kUnsupported in a program that is linked statically. A library would bring the host's C
/// library into it, beside its own of another version, and nobody promises that both get along.
Result<void> check_loads_libraries(const std::string& library);

/// Users and groups are those of /etc/passwd and /etc/group, whatever /etc/nsswitch.conf says: other sources are
/// libraries. Does nothing in a program that is linked dynamically. Before the first look-up.
void keep_look_ups_to_files();

}  // namespace ckpt
