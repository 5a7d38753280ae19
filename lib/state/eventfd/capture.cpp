#include "lib/state/descriptors/kind_functions.h"

namespace ckpt::capture {

Result<void> take_eventfd(const Place& place, store::Descriptor& d) {
  d.eventfd.count = place.info.eventfd_count, d.eventfd.semaphore = place.info.eventfd_semaphore;
  return {};
}

}  // namespace ckpt::capture
