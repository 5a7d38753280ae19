#include "lib/state/mounts/open_below.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ckpt::state {

UniqueFd open_below(int root, const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC | O_NOFOLLOW);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
  const char* name = path.empty() ? "." : path.c_str();
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, root, name, &how, sizeof how)));
}

}  // namespace ckpt::state
