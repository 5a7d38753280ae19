// safetensors headers; the first byte is how much data follows.
#include "formats/safetensors/header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  (void)ckpt::formats::parse_safetensors_header({reinterpret_cast<const char*>(data) + 1, size - 1}, data[0]);
  return 0;
}
