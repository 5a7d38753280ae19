#include "lib/state/namespaces/further.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lib/base/io.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/network/content.h"

namespace ckpt::state {

namespace {

// Never closed but by the next ones: the processes that ckpt forks look names up, too.
std::vector<MountNamespace>& handles() {
  static auto* const all = new std::vector<MountNamespace>();
  return *all;
}
thread_local int t_looked_into = -1;

const MountNamespace* mounts_at(int index) {
  const auto& all = handles();
  const bool there = index >= 0 && static_cast<size_t>(index) < all.size();
  return there && all[static_cast<size_t>(index)].root ? &all[static_cast<size_t>(index)] : nullptr;
}

}  // namespace

int further_flag(const std::string& kind) {
  constexpr std::array<int, store::kFurtherKinds.size()> kFlags = {CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC,
                                                                   CLONE_NEWNET, CLONE_NEWPID};
  const auto found = std::find(store::kFurtherKinds.begin(), store::kFurtherKinds.end(), kind);
  return found == store::kFurtherKinds.end() ? 0 : kFlags[static_cast<size_t>(found - store::kFurtherKinds.begin())];
}

void set_further(std::vector<MountNamespace> all) { handles() = std::move(all); }

int further_handle(int index) {
  const auto& all = handles();
  const bool there = index >= 0 && static_cast<size_t>(index) < all.size();
  return there ? all[static_cast<size_t>(index)].handle.get() : -1;
}

int further_of(const store::TreeImage& tree, size_t process, const std::string& kind) {
  for (const int index : tree.processes[process].namespaces) {
    if (tree.namespaces.further[static_cast<size_t>(index)].kind == kind) return index;
  }
  return -1;
}

InMounts::InMounts(int index) : before_(t_looked_into), root_(mounts_at(index)) {
  t_looked_into = mounts_at(index) != nullptr ? index : -1;
}
InMounts::~InMounts() { t_looked_into = before_; }
int looked_into() { return t_looked_into; }

Result<Visit> Visit::begin(int handle, const std::string& kind) {
  Visit out;
  out.flag_ = further_flag(kind);
  CKPT_TRY_ASSIGN(UniqueFd own, io::open_file("/proc/thread-self/ns/" + kind, O_RDONLY));
  if (::setns(handle, out.flag_) != 0) return sys_error(kind + " namespace", "cannot be entered");
  out.own_ = std::move(own);
  return out;
}

Visit::~Visit() {
  if (own_) (void)::setns(own_.get(), flag_);
}

Result<void> validate_further(const store::TreeImage& tree) {
  const auto& further = tree.namespaces.further;
  auto damaged = [](const char* what) { return fail(Code::kCorrupt, "namespaces", what); };
  for (const store::FurtherNamespace& one : further) {
    if (further_flag(one.kind) == 0) return damaged("has a further one of a kind that there is none of");
    if ((one.kind == "mnt") == one.mounts.mounts.empty()) return damaged("has mounts where there can be none, or none");
    CKPT_TRY(validate_mounts(one.mounts));
    CKPT_TRY(validate_network(one.network));
    CKPT_TRY(validate_ipc_limits(one.ipc_limits));
  }
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    const store::ProcessImage& process = tree.processes[i];
    std::set<std::string> kinds;
    for (const int index : process.namespaces) {
      if (index < 0 || static_cast<size_t>(index) >= further.size() || i == 0 ||
          !kinds.insert(further[static_cast<size_t>(index)].kind).second)
        return damaged("are not those that a process can be in");
    }
  }
  CKPT_TRY(validate_pid_namespaces(tree));
  for (const store::FileIdentity& file : tree.files) {
    const bool none = file.mounts == -1;
    if (!none && (file.mounts < 0 || static_cast<size_t>(file.mounts) >= further.size() ||
                  further[static_cast<size_t>(file.mounts)].kind != "mnt"))
      return damaged("have a file in mounts that are not there");
  }
  return {};
}

}  // namespace ckpt::state
