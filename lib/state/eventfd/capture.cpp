#include "lib/state/eventfd/capture.h"

namespace ckpt::capture {

void take_eventfd(const Place& place, store::Descriptor& d) {
  d.kind = store::DescriptorKind::kEventfd;
  d.eventfd.count = place.info.eventfd_count, d.eventfd.semaphore = place.info.eventfd_semaphore;
}

}  // namespace ckpt::capture
