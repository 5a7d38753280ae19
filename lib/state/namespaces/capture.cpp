#include "lib/state/namespaces/capture.h"

#include <sys/utsname.h>

#include "lib/state/namespaces/entered.h"

namespace ckpt::capture {

Result<void> inventory_namespaces(Walk& walk) {
  const state::Entered* entered = state::entered();
  if (entered == nullptr) return {};
  store::Namespaces& out = walk.out.image.namespaces;
  out.own = entered->kinds;
  if (out.has("uts")) {
    utsname names{};
    if (::uname(&names) != 0) return sys_error("uts namespace", "cannot be asked for its names");
    out.hostname = names.nodename, out.domainname = names.domainname;
  }
  constexpr int kInit = 1;
  const bool is_init = walk.members[0].entry.pid == kInit;
  for (const char* kind : {"mnt", "net"}) {
    if (is_init && walk.options.ends && out.has(kind))
      walk.out.block(0, std::string("namespace ") + kind, "its own, which a restore cannot make again yet",
                     "--leave-running");
  }
  return {};
}

}  // namespace ckpt::capture
