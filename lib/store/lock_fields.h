// The members of file locks in the manifest; see manifest_fields.h.
#pragma once

#include <array>
#include <limits>

#include "lib/store/lock_image.h"

namespace ckpt::store {

inline constexpr std::array<const char*, 3> kLockNames = {"flock", "posix", "ofd"};

template <class A>
void describe(A& a, typename A::template Of<FileLock> l) {
  a.choice("kind", l.kind, kLockNames);
  a.flag("write", l.write);
  a.number("start", l.start, 0);
  a.number("last", l.last, -1, std::numeric_limits<int64_t>::max() - 1);
}

}  // namespace ckpt::store
