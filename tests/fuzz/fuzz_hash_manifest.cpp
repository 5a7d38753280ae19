// Manifests of hashes (ckpt.manifest/1): what is accepted is written and read back the same.
#include <cstdlib>

#include "lib/model/verify/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto manifest = ckpt::model::parse_manifest({reinterpret_cast<const char*>(data), size});
  if (!manifest) return 0;
  const std::string text = ckpt::model::to_json(*manifest);
  auto again = ckpt::model::parse_manifest(text);
  if (!again || ckpt::model::to_json(*again) != text) std::abort();
  return 0;
}
