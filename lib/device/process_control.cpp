#include "lib/device/process_control.h"

namespace ckpt::device {

const char* name(ProcessState state) {
  switch (state) {
    case ProcessState::kNone: return "none";
    case ProcessState::kRunning: return "running";
    case ProcessState::kLocked: return "locked";
    case ProcessState::kCheckpointed: return "checkpointed";
    case ProcessState::kFailed: return "failed";
  }
  return "unknown";
}

}  // namespace ckpt::device
