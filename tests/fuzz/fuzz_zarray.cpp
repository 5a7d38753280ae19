// `.zarray` files, up to the first zero byte; what follows is a chunk for the array's codecs.
#include "formats/zarr/zarray.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(text.find('\0'), text.size());
  for (bool megatron : {false, true}) {
    auto array = ckpt::formats::parse_zarray(text.substr(0, end), megatron);
    if (!array || end == text.size() || array->chunk_bytes() > 1 << 16) continue;
    std::vector<std::byte> out(array->chunk_bytes());
    (void)ckpt::formats::decode_steps(array->codecs, ckpt::as_bytes(text.substr(end + 1)), out);
  }
  return 0;
}
