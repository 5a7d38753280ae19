#include "lib/state/network/loopback.h"

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>

#include "lib/base/unique_fd.h"

namespace ckpt::state {

Result<void> raise_loopback() {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (!fd || ::ioctl(fd.get(), SIOCSIFFLAGS, &request) != 0) return sys_error("lo", "cannot be brought up");
  return {};
}

}  // namespace ckpt::state
