// Answers of an agent, whose process may be anybody's: the first byte says what was asked.
#include <cstdlib>

#include "plugins/cuda/agent_replies.h"

using namespace ckpt;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view payload(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0: (void)cuda::parse_hello(payload); break;
    case 1: (void)cuda::parse_allocations(payload); break;
    case 2: {
      auto saved = cuda::parse_saved(payload);
      for (size_t i = 0; saved && i < saved->size(); ++i) {
        if ((*saved)[i].offset + (*saved)[i].original.size > (*saved)[i].buffer_size) std::abort();
      }
      break;
    }
    case 3: (void)cuda::parse_ranges(payload); break;
    case 4: (void)cuda::parse_ids(payload); break;
    default: {
      auto launches = cuda::parse_recorded(payload);
      size_t bytes = 0;
      for (size_t i = 0; launches && i < launches->size(); ++i) bytes += (*launches)[i].record.size();
      if (bytes > size) std::abort();
    }
  }
  return 0;
}
