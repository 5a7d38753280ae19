// Files below /proc/sys/net, of the network namespace that this thread is in.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/network/record.h"

namespace ckpt::state {

/// By their paths below /proc/sys: those that can be read and written.
using Settings = std::map<std::string, std::string>;
Settings read_settings();

/// Those that are not as in a new namespace, in the order to write them: what changes others first, and all that it may
/// have changed after it. Of a link that a new one has not: those that are not as its defaults.
std::vector<store::KernelSetting> settings_to_make(const Settings& now, const Settings& fresh);

/// kCorrupt: a path that leads elsewhere.
Result<void> validate_settings(const std::vector<store::KernelSetting>& settings);

/// Whether it is of one link alone, and not of loopback.
bool is_of_link(const store::KernelSetting& setting);
/// Of IPv6, how a link chooses an address by itself, which is written last.
bool is_choice_of_addresses(const store::KernelSetting& setting);
Result<void> write_setting(const store::KernelSetting& setting);

}  // namespace ckpt::state
