// What the processes of a tree share with one another, and with ckpt.
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>

#include "lib/capture/inventory_internal.h"

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
  find_owners(walk, KCMP_FS, &store::ProcessImage::folders_of);
  find_owners(walk, KCMP_SIGHAND, &store::ProcessImage::handlers_of);
}

void inventory_leaders(Walk& walk) {
  auto is_outside = [&](int number) { return number != 0 && walk.out.find(number) < 0 && proc::read_stat(number).has_value(); };
  for (store::ProcessImage& process : walk.out.image.processes) {
    process.outside_session = is_outside(process.session);
    process.outside_group = is_outside(process.group);
  }
}

Result<void> inventory_namespaces(Walk& walk) {
  for (const char* ns : {"pid", "mnt", "net", "ipc", "uts", "user", "cgroup", "time"}) {
    const std::string name = std::string("ns/") + ns;
    auto ours = proc::read_link(::getpid(), name);
    for (size_t i = 0; i < walk.members.size(); ++i) {
      if (walk.members[i].entry.zombie) continue;
      auto theirs = proc::read_link(walk.members[i].entry.pid, name);
      if (theirs && ours && *theirs != *ours) {
        walk.out.block(i, "namespace " + *theirs, "another one than ckpt's, which is not supported yet");
      }
    }
  }
  return {};
}

}  // namespace ckpt::capture
