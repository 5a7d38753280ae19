// Numbers and ids as the objects of a store have them: little-endian, as this machine has them in memory.
#pragma once

#include <bit>
#include <string>

#include "lib/repository/id.h"

namespace ckpt::repository {

static_assert(std::endian::native == std::endian::little);

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline void append_id(std::string& out, const Id& id) {
  out.append(reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size());
}

}  // namespace ckpt::repository
