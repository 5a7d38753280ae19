#include "lib/state/namespaces/capture.h"

#include <sys/utsname.h>

#include "lib/state/mounts/capture.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/entered.h"
#include "lib/state/namespaces/network.h"

namespace ckpt::capture {

namespace {

/// Process 1 cannot be restored into a namespace that is there: what is not made anew with it would be lost.
void block_what_cannot_be_made(Walk& walk) {
  constexpr int kInit = 1;
  const store::Namespaces& own = walk.out.image.namespaces;
  if (walk.members[0].entry.pid != kInit || !walk.options.ends) return;
  constexpr const char* kWhy = "which a restore cannot make again yet";
  for (const std::string& mount : state::mounts_in_the_way(own.mounts))
    walk.out.block(0, "namespace mnt", mount + ", " + kWhy, "--external 'mnt[MOUNTPOINT]:KEY'");
  for (const std::string& thing : own.network.beyond)
    walk.out.block(0, "namespace net", thing + ", " + kWhy, "--leave-running");
}

}  // namespace

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
  if (out.has("net")) {
    // Of a frozen tree what was seen while it ran: ckpt has put a packet filter there since, perhaps.
    if (walk.options.frozen && walk.options.earlier != nullptr) {
      out.network = walk.options.earlier->image.namespaces.network;
    } else {
      CKPT_TRY_ASSIGN(out.network, take_network());
    }
  }
  if (out.has("mnt")) CKPT_TRY(inventory_mounts(walk));
  block_what_cannot_be_made(walk);
  return {};
}

}  // namespace ckpt::capture
