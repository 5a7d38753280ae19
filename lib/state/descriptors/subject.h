// How messages name an open file.
#pragma once

#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/descriptors/record.h"

namespace ckpt::restore {

/// "descriptor 7".
inline std::string subject_of(const store::Descriptor& descriptor) {
  return descriptor.fds.empty() ? "an open file in flight" : "descriptor " + std::to_string(descriptor.fds[0].fd);
}

/// `fd`, or errno as it stands: "descriptor 7: cannot make an eventfd: ...".
inline Result<UniqueFd> owned(int fd, const store::Descriptor& descriptor, const char* what) {
  if (fd < 0) return sys_error(subject_of(descriptor), what);
  return UniqueFd(fd);
}

/// Its number in a process's table, -1: none.
inline int number_in(const store::Descriptor& descriptor, int process) {
  for (const auto& slot : descriptor.fds) {
    if (slot.process == process) return slot.fd;
  }
  return -1;
}

}  // namespace ckpt::restore
