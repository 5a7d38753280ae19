#include "lib/state/signalfd/capture.h"

namespace ckpt::capture {

void take_signalfd(const Place& place, store::Descriptor& d) {
  d.kind = store::DescriptorKind::kSignalfd;
  d.signalfd.mask = place.info.signal_mask;
}

}  // namespace ckpt::capture
