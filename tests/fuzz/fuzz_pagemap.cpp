// A page map from a stranger, whole and in pieces: both ways must agree.
#include <cstdint>
#include <cstdlib>

#include "lib/store/pagemap.h"

using namespace ckpt;
using namespace ckpt::store;

namespace {

Result<std::vector<PagemapRecord>> parse(ByteSpan bytes, size_t step) {
  PagemapParser parser({1 << 20, 1 << 16}, true);
  for (size_t at = 0; at < bytes.size(); at += step)
    CKPT_TRY(parser.feed(bytes.subspan(at, std::min(step, bytes.size() - at))));
  return parser.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  auto whole = parse(bytes, size + 1), pieces = parse(bytes, 13);
  if (whole.has_value() != pieces.has_value()) std::abort();
  if (whole && whole->size() != pieces->size()) std::abort();
  return 0;
}
