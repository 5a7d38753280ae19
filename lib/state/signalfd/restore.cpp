#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/state/descriptors/kind_functions.h"
#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

Result<UniqueFd> make_signalfd(const store::Descriptor& descriptor) {
  uint64_t mask = descriptor.signalfd.mask;  // the kernel's set of 8 bytes, not the C library's of 128
  return owned(static_cast<int>(::syscall(SYS_signalfd4, -1, &mask, sizeof mask, SFD_CLOEXEC)), descriptor,
               "cannot make a signalfd");
}

}  // namespace ckpt::restore
