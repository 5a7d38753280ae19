#include "lib/state/descriptors/kind_functions.h"

namespace ckpt::capture {

Result<void> take_signalfd(const Place& place, store::Descriptor& d) {
  d.signalfd.mask = place.info.signal_mask;
  return {};
}

}  // namespace ckpt::capture
