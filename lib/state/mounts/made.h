// The file systems that this process has made for the tree's new mount namespace, for the rest of its life.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "lib/base/unique_fd.h"

namespace ckpt::state {

/// `before`: the number that the device had when the image was taken; `root`: a mount of it that can be written to.
void add_made_filesystem(uint64_t before, dev_t now, UniqueFd root);
/// Nothing: it was not made here.
std::optional<dev_t> made_device(uint64_t before);
/// -1: it was not made here.
int made_root(uint64_t before);

/// An overlay, which takes its files from folders that are there: numbers of its devices and folders are others then.
void add_made_overlay(UniqueFd root);
bool is_on_made_overlay(int fd);

/// Terminals that exist already, since something of them is mounted: whoever makes terminals takes their masters over.
void reserve_terminal(int index, UniqueFd master);
bool is_terminal_reserved(int index);
/// Empty: it is not reserved.
UniqueFd take_reserved_terminal(int index);

}  // namespace ckpt::state
