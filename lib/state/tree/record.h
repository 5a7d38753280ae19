// What a parent could still learn of a child: what the manifest says of them.
#pragma once

#include <array>

namespace ckpt::store {

/// What a parent could still learn of a child by wait(2) with WUNTRACED or WCONTINUED.
enum class WaitStatus { kNone, kStopped, kContinued };

inline constexpr std::array<const char*, 3> kWaitStatusNames = {"none", "stopped", "continued"};

}  // namespace ckpt::store
