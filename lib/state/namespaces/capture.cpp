#include "lib/state/namespaces/capture.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include "lib/state/mounts/capture.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/clocks.h"
#include "lib/state/namespaces/entered.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/network/capture.h"
#include "lib/state/network/content.h"

namespace ckpt::capture {

namespace {

void note_outer_ends(Walk& walk) {
  for (const store::NetworkLink& link : walk.out.image.namespaces.network.links) {
    if (!state::leads_outside(link)) continue;
    walk.out.notes.push_back(
        fmt::format("interface {} is a veth with its other end outside: a restore into a new network namespace takes "
                    "--veth {}=NAME[@BRIDGE]",
                    link.name, link.name));
  }
}

/// Process 1 cannot be restored into a namespace that is there: what is not made anew with it would be lost. Others
/// can: who dumps them is told.
void block_what_cannot_be_made(Walk& walk) {
  constexpr int kInit = 1;
  const store::Namespaces& own = walk.out.image.namespaces;
  if (!walk.options.ends) return;
  note_outer_ends(walk);
  constexpr const char* kWhy = "which a restore cannot make again yet";
  if (walk.members[0].entry.pid != kInit) {
    std::vector<std::string> in_the_way = state::mounts_in_the_way(own.mounts);
    in_the_way.insert(in_the_way.end(), own.network.beyond.begin(), own.network.beyond.end());
    if (in_the_way.empty()) return;
    const std::string more = in_the_way.size() > 1 ? fmt::format(" (and {} more)", in_the_way.size() - 1) : "";
    walk.out.notes.push_back(
        fmt::format("its namespaces have {}{}, {}: restore --into PID takes those of a running process", in_the_way[0],
                    more, kWhy));
    return;
  }
  for (const std::string& mount : state::mounts_in_the_way(own.mounts))
    walk.out.block(0, "namespace mnt", mount + ", " + kWhy, "--external 'mnt[MOUNTPOINT]:KEY'");
  for (const std::string& thing : own.network.beyond)
    walk.out.block(0, "namespace net", thing + ", " + kWhy, "--leave-running");
}

}  // namespace

Result<void> inventory_namespaces(Walk& walk) {
  const state::Entered* entered = state::entered();
  store::Namespaces& out = walk.out.image.namespaces;
  if (entered != nullptr) out.own = entered->kinds;
  const state::ExternalMounts& external = walk.options.external_mounts;
  if (!out.has("mnt") && !external.keys.empty() && !external.may_match_nothing)
    return fail(Code::kUsage, "--external",
                "is of processes in a mount namespace of their own, and these are in ckpt's");
  if (entered == nullptr) return {};
  if (out.has("uts")) {
    utsname names{};
    if (::uname(&names) != 0) return sys_error("uts namespace", "cannot be asked for its names");
    out.hostname = names.nodename, out.domainname = names.domainname;
  }
  if (out.has("ipc")) {
    CKPT_TRY_ASSIGN(out.ipc_limits, state::read_ipc_limits());
  }
  if (out.has("time")) {
    CKPT_TRY_ASSIGN(out.clocks, state::read_clocks());
  }
  if (out.has("net")) {
    // Of a frozen tree what was seen while it ran: ckpt has put a packet filter there since, perhaps.
    if (walk.options.frozen && walk.options.earlier != nullptr) {
      out.network = walk.options.earlier->image.namespaces.network;
    } else {
      CKPT_TRY_ASSIGN(out.network, take_network());
      if (walk.options.empty_network) out.network = state::without_links(out.network);
    }
  }
  if (out.has("mnt")) CKPT_TRY(inventory_mounts(walk));
  block_what_cannot_be_made(walk);
  return {};
}

}  // namespace ckpt::capture
