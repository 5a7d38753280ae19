// Compiled with -mavx512f, see CMakeLists.txt.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/base/xxh3_wide.h"

namespace ckpt {

void xxh3_128_wide(const void* data, size_t size, uint64_t& low, uint64_t& high) {
  const XXH128_hash_t h = XXH3_128bits(data, size);
  low = h.low64, high = h.high64;
}

void xxh3_update_wide(void* state, const void* data, size_t size) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), data, size);
}

}  // namespace ckpt
