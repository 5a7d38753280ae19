#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/state/descriptors/kind_functions.h"
#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

Result<UniqueFd> make_eventfd(const store::Descriptor& descriptor) {
  const store::Eventfd& eventfd = descriptor.eventfd;
  const int flags = EFD_CLOEXEC | EFD_NONBLOCK | (eventfd.semaphore ? EFD_SEMAPHORE : 0);
  CKPT_TRY_ASSIGN(UniqueFd fd, owned(::eventfd(0, flags), descriptor, "cannot make an eventfd"));
  if (eventfd.count != 0 && ::write(fd.get(), &eventfd.count, sizeof eventfd.count) != sizeof eventfd.count)
    return sys_error(subject_of(descriptor), "cannot set the eventfd's count");
  return fd;
}

}  // namespace ckpt::restore
