#include "lib/state/namespaces/capture.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>

#include "lib/state/cgroups/capture.h"
#include "lib/state/mounts/capture.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/clocks.h"
#include "lib/state/namespaces/entered.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/namespaces/user.h"
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

/// What `take` finds to be beyond ckpt stands in the way.
Result<void> take_or_block(Walk& walk, const std::string& kind, Result<void> taken) {
  if (taken || taken.error().code != Code::kUnsupported) return taken;
  walk.out.block(0, "namespace " + kind, taken.error().message);
  return {};
}

Result<void> take_cgroup_roots(Walk& walk) {
  std::vector<int> pids;
  for (size_t i = 0; i < walk.members.size(); ++i) {
    if (!walk.is_zombie(i)) pids.push_back(walk.members[i].entry.pid);
  }
  CKPT_TRY_ASSIGN(walk.out.image.namespaces.cgroup_roots, read_cgroup_roots(pids));
  return {};
}

Result<void> take_user_namespace(Walk& walk) {
  store::Namespaces& out = walk.out.image.namespaces;
  CKPT_TRY_ASSIGN(out.user, state::read_user_namespace(walk.members[0].entry.pid, out.own));
  return {};
}

/// Of both looks: what a dump says is what the last one has found.
void look_at_user_namespace(Walk& walk) {
  const store::Namespaces& out = walk.out.image.namespaces;
  const auto owns = [&](const char* kind) {
    return std::find(out.user.owns.begin(), out.user.owns.end(), kind) != out.user.owns.end();
  };
  constexpr int kInit = 1;
  if (!walk.options.ends || !owns("pid")) return;
  if (walk.members[0].entry.pid != kInit) {
    walk.out.notes.push_back(
        "it is not process 1 of a pid namespace that belongs to its user namespace, which a restore makes again with "
        "process 1 only: restore --into PID takes those of a running process");
  } else if (out.has("mnt") && !owns("mnt")) {
    walk.out.block(0, "namespace mnt", "does not belong to the user namespace of process 1, which is not supported",
                   "--leave-running");
  }
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
  // Of a frozen tree what was seen while it ran: it stands still for what is read here.
  const store::Namespaces* const then = walk.options.frozen && walk.options.earlier != nullptr
                                            ? &walk.options.earlier->image.namespaces
                                            : nullptr;
  if (then != nullptr) out.ipc_limits = then->ipc_limits, out.cgroup_roots = then->cgroup_roots, out.user = then->user;
  if (out.has("ipc") && then == nullptr) {
    CKPT_TRY_ASSIGN(out.ipc_limits, state::read_ipc_limits());
  }
  if (out.has("time")) {
    CKPT_TRY_ASSIGN(out.clocks, state::read_clocks());
  }
  if (out.has("cgroup") && then == nullptr) CKPT_TRY(take_or_block(walk, "cgroup", take_cgroup_roots(walk)));
  if (out.has("user") && then == nullptr) CKPT_TRY(take_or_block(walk, "user", take_user_namespace(walk)));
  if (out.has("user")) look_at_user_namespace(walk);
  if (out.has("net")) {
    if (then != nullptr) {
      out.network = then->network;  // ckpt has put a packet filter there since, perhaps
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
