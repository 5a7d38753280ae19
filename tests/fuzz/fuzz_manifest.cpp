// A manifest from a stranger: no crash, no hang, bounded memory; what is accepted is written and read back the same.
#include <cstdint>
#include <cstdlib>

#include "lib/store/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto manifest = ckpt::store::parse_manifest({reinterpret_cast<const char*>(data), size});
  if (!manifest) return 0;
  auto again = ckpt::store::parse_manifest(ckpt::store::to_json(*manifest));
  if (!again || !(*again == *manifest)) std::abort();
  return 0;
}
