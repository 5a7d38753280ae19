// The headers of GGUF files. A header that is read lies within what was given, and its pairs are JSON.
#include <nlohmann/json.hpp>

#include "formats/gguf/header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto header = ckpt::formats::parse_gguf_header(std::as_bytes(std::span(data, size)));
  if (!header || !*header) return 0;
  if (!nlohmann::json::accept((*header)->metadata)) __builtin_trap();
  return 0;
}
