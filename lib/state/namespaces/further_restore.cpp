// Namespaces that processes of a tree have apart from its first one, made again.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/state/mounts/plan.h"
#include "lib/state/mounts/restore.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/namespaces/restore.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/network/content.h"
#include "lib/state/run_as.h"

namespace ckpt::restore {

namespace {

using store::FurtherNamespace;

bool is_mounts(const FurtherNamespace& further) { return further.kind == "mnt"; }

/// By a helper, which belongs to the user namespace of the processes where they have one.
Result<UniqueFd> make_empty(const std::string& kind) {
  const state::TreeUser* user = state::tree_user();
  CKPT_TRY_ASSIGN(const CallResult made, run_as({}, [&] {
                    const UniqueFd self(::open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC));
                    if (!self || (user != nullptr && ::setns(user->handle.get(), CLONE_NEWUSER) != 0) ||
                        ::unshare(state::further_flag(kind)) != 0)
                      return -errno;
                    const int handle = ::openat(self.get(), ("ns/" + kind).c_str(), O_RDONLY | O_CLOEXEC);
                    return handle < 0 ? -errno : handle;
                  }));
  if (made.value < 0) return sys_error(-made.value, kind + " namespace", "cannot be made");
  return UniqueFd(made.value);
}

Result<void> fill(const FurtherNamespace& further) {
  if (further.kind == "ipc") return state::write_all_ipc_limits(further.ipc_limits);
  if (further.kind == "net") return state::make_network(further.network, {}, nullptr, [] { return Result<void>(); });
  return set_host_names(further.hostname, further.domainname);
}

/// An image of processes that were left running may have what a dump that ends them refuses.
Result<void> check_networks(const store::Namespaces& namespaces) {
  Error error(Code::kUnsupported, "the image", "is of processes in further namespaces that cannot be made again");
  for (const FurtherNamespace& further : namespaces.further) {
    for (const std::string& thing : further.network.beyond)
      error.causes.push_back("a network namespace with " + thing);
    for (const store::NetworkLink& link : further.network.links) {
      if (state::leads_outside(link))
        error.causes.push_back(fmt::format("interface {}, a veth with its other end outside", link.name));
    }
  }
  return error.causes.empty() ? Result<void>() : Result<void>(std::move(error));
}

}  // namespace

Result<void> check_further(const store::TreeImage& tree, bool joins) {
  CKPT_TRY(state::validate_further(tree));
  const store::Namespaces& namespaces = tree.namespaces;
  CKPT_TRY(check_networks(namespaces));
  if (std::none_of(namespaces.further.begin(), namespaces.further.end(), is_mounts)) return {};
  if (joins || namespaces.has("user")) {
    return fail(Code::kUnsupported, "the image",
                "has processes in mount namespaces of their own within the first process's, which are made with that "
                "only, and outside of user namespaces");
  }
  CKPT_TRY(state::validate_mounts(namespaces.mounts));
  state::OtherMounts others = {&namespaces.mounts};
  for (const FurtherNamespace& further : namespaces.further) {
    if (is_mounts(further)) CKPT_TRY(state::plan_mounts(further.mounts, {}, others));
    others.push_back(&further.mounts);
  }
  return {};
}

Result<void> make_further(const store::TreeImage& tree, const std::string& boot_id, bool dry_run) {
  state::MountOptions options;
  options.dry_run = dry_run;
  std::vector<state::MountNamespace> made;
  std::vector<MadeMounts> others = {{&tree.namespaces.mounts, state::tree_mount_namespace()}};
  for (const FurtherNamespace& further : tree.namespaces.further) {
    state::MountNamespace& one = made.emplace_back();
    if (is_mounts(further)) {
      CKPT_TRY_ASSIGN(one, make_mount_namespace(further.mounts, boot_id, options, others));
    } else if (further.kind != "pid") {  // which its first process makes
      CKPT_TRY_ASSIGN(one.handle, make_empty(further.kind));
    }
    others.push_back({&further.mounts, one.handle.get()});
  }
  state::set_further(std::move(made));
  return {};
}

Result<void> fill_further(const store::TreeImage& tree) {
  for (size_t i = 0; i < tree.namespaces.further.size(); ++i) {
    const FurtherNamespace& further = tree.namespaces.further[i];
    if (is_mounts(further) || further.kind == "pid") continue;
    CKPT_TRY_ASSIGN(const state::Visit visit, state::Visit::begin(state::further_handle(static_cast<int>(i)),
                                                                  further.kind));
    CKPT_TRY(fill(further));
  }
  return {};
}

}  // namespace ckpt::restore
