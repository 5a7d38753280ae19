// What the processes of a tree share with one another, and with ckpt.
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/proc/io_uring.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/namespaces/entered.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/walk.h"

namespace ckpt::capture {

namespace {

/// kcmp(2) gives an order, so the processes with one thing in common are found without comparing each with each.
struct KernelOrder {
  int type;
  bool operator()(int a, int b) const { return a != b && ::syscall(SYS_kcmp, a, b, type, 0, 0) == 1; }
};

void find_owners(Walk& walk, int type, int store::ProcessImage::*owner) {
  std::map<int, size_t, KernelOrder> owners(KernelOrder{type});
  for (size_t i = 0; i < walk.members.size(); ++i) {
    if (walk.members[i].entry.zombie) continue;
    auto [first, is_new] = owners.emplace(walk.members[i].entry.pid, i);
    if (!is_new) walk.out.image.processes[i].*owner = static_cast<int>(first->second);
  }
}

}  // namespace

void inventory_sharing(Walk& walk) {
  if (walk.members.size() == 1) return;
  find_owners(walk, KCMP_VM, &store::ProcessImage::memory_of);
  find_owners(walk, KCMP_FILES, &store::ProcessImage::descriptors_of);
  find_owners(walk, KCMP_FS, &store::ProcessImage::fs_of);
  find_owners(walk, KCMP_SIGHAND, &store::ProcessImage::sighand_of);
}

void inventory_leaders(Walk& walk) {
  // Number 0: the leader is outside of ckpt's pid namespace.
  std::map<int, bool> known = {{0, true}};
  auto is_outside = [&](int number) {
    auto [entry, is_new] = known.emplace(number, false);
    if (is_new) entry->second = walk.out.find(number) < 0 && proc::read_stat(number).has_value();
    return entry->second;
  };
  for (store::ProcessImage& process : walk.out.image.processes) {
    process.outside_session = is_outside(process.session);
    process.outside_group = is_outside(process.group);
  }
}

namespace {

/// Namespaces that the next child will be born in, and the process is not in itself.
void block_namespaces_for_children(Walk& walk, size_t process) {
  const int pid = walk.members[process].entry.pid;
  for (const char* ns : {"pid", "time"}) {
    const std::string name = std::string("ns/") + ns;
    auto own = proc::read_link(pid, name), next = proc::read_link(pid, name + "_for_children");
    // Without a first child yet the link to a new pid namespace leads nowhere.
    if (own && next.has_value() != own.has_value() && next.error().code != Code::kNotFound) continue;
    if (own && next && *next != *own && name == "ns/pid") {
      walk.seen[process].pids_for_children = *next;
    } else if (own && (!next || *next != *own)) {
      walk.block(process, name + "_for_children",
                 std::string("the process has made a ") + ns +
                     " namespace for its children (unshare), which is not supported");
    }
  }
}

/// A thread may have left what it shared with its process (unshare). Those that were there in the look before, while
/// the tree ran, are believed.
void block_threads_of_their_own(Walk& walk, size_t process) {
  const int pid = walk.members[process].entry.pid;
  auto tids = proc::read_threads(pid);
  if (!tids || tids->size() == 1) return;
  const int then = walk.options.earlier != nullptr ? walk.options.earlier->find(pid) : -1;
  std::set<int> known = {pid};
  if (walk.options.frozen && then >= 0) {
    for (const store::Thread& thread : walk.options.earlier->image.processes[static_cast<size_t>(then)].threads)
      known.insert(thread.tid);
  }
  for (int tid : *tids) {
    if (known.contains(tid) || proc::is_io_worker(pid, tid)) continue;
    for (const auto& [type, what] : {std::pair(KCMP_FILES, "a descriptor table"),
                                     std::pair(KCMP_FS, "a working folder, root folder and umask")}) {
      if (::syscall(SYS_kcmp, pid, tid, type, 0, 0) <= 0) continue;
      auto now = proc::read_thread_stat(pid, tid);
      if (!now || now->is_ending()) continue;  // it has neither any more
      walk.block(process, "thread " + std::to_string(tid),
                 std::string("has ") + what + " of its own (unshare), which is not supported");
    }
  }
}

/// Each thread may have entered namespaces by itself (setns). Looked at while the tree runs: it costs some ten
/// microseconds a thread.
void block_namespaces_of_threads(Walk& walk, size_t process) {
  const int pid = walk.members[process].entry.pid;
  auto tids = proc::read_threads(pid);
  if (!tids || tids->size() == 1) return;
  for (const char* ns : {"mnt", "net", "ipc", "uts", "cgroup", "pid_for_children"}) {
    auto own = proc::read_link(pid, std::string("ns/") + ns);
    for (int tid : *tids) {
      auto theirs = proc::read_link(pid, "task/" + std::to_string(tid) + "/ns/" + ns);
      if (!own || !theirs || *theirs == *own) continue;
      walk.block(process, "thread " + std::to_string(tid) + ", namespace " + *theirs,
                 "another one than its process's, which is not supported");
    }
  }
}

/// A copy of it would be another one than the process had: that of the host, say.
bool is_callers(const std::string& link) {
  const state::Entered* entered = state::entered();
  return entered != nullptr &&
         std::find(entered->callers.begin(), entered->callers.end(), link) != entered->callers.end();
}

}  // namespace

Namespaces::Namespaces(int first) {
  for (const char* ns : {"pid", "mnt", "net", "ipc", "uts", "user", "cgroup", "time"}) {
    const std::string name = std::string("ns/") + ns;
    auto ours = proc::read_link(::getpid(), name), theirs = proc::read_link(first, name);
    // Names are looked up under the tree's own root, of a control group its whole path is kept, ids are those outside.
    const bool may_differ = (name == "ns/mnt" && state::has_tree_root()) ||
                            ((name == "ns/cgroup" || name == "ns/user") && state::entered() != nullptr);
    if (ours && theirs) links_.push_back({name, *theirs, may_differ ? *theirs : *ours});
  }
}

void Namespaces::compare_pids(Walk& walk, size_t process) const {
  if (walk.out.image.processes[process].threads[0].inner_tids.empty()) return;
  for (const Link& link : links_) {
    auto theirs = link.name == "ns/pid" ? proc::read_link(walk.members[process].entry.pid, link.name) : link.first;
    if (!theirs) walk.block(process, "its pid namespace", "nothing tells which one, now that it has ended");
    else if (*theirs != link.first) walk.seen[process].apart.push_back(*theirs);
  }
}

void Namespaces::compare(Walk& walk, size_t process) const {
  for (const Link& link : links_) {
    auto theirs = proc::read_link(walk.members[process].entry.pid, link.name);
    if (!theirs) continue;
    if (*theirs != link.first && is_callers(*theirs))
      walk.block(process, "namespace " + *theirs,
                 "that of whoever runs ckpt, entered from the tree's own, which is not supported");
    else if (*theirs != link.first && state::further_flag(link.name.substr(link.name.find('/') + 1)) != 0)
      walk.seen[process].apart.push_back(*theirs);
    else if (*theirs != link.first)
      walk.block(process, "namespace " + *theirs, kNestedNamespace);
    else if (link.first != link.ours)
      walk.block(process, "namespace " + *theirs, kOtherNamespace);
  }
  block_namespaces_for_children(walk, process);
  block_threads_of_their_own(walk, process);
  if (!walk.options.frozen) block_namespaces_of_threads(walk, process);
}

}  // namespace ckpt::capture
