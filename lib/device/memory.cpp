#include "lib/device/memory.h"

namespace ckpt::device {

const char* name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kOwned: return "owned";
    case MemoryKind::kNative: return "native";
    case MemoryKind::kPinned: return "pinned";
  }
  return "unknown";
}

}  // namespace ckpt::device
