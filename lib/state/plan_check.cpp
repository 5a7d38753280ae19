#include "lib/state/plan_check.h"

#include <fmt/format.h>

#include <map>

#include "lib/proc/seccomp.h"
#include "lib/state/descriptors/inherited.h"
#include "lib/state/external/restore.h"
#include "lib/state/files/restore.h"
#include "lib/state/host_check.h"
#include "lib/state/memory_policies/restore.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/timers/restore.h"
#include "lib/state/validate.h"

namespace ckpt::restore {

namespace {

using store::ProcessImage;
using store::TreeImage;

/// clone shares with a parent or, by CLONE_PARENT, with a sibling.
void check_sharing(const TreeImage& tree, const std::map<int, const ProcessImage*>& by_pid, Reasons& reasons) {
  for (const ProcessImage& process : tree.processes) {
    for (int ProcessImage::*owner_of :
         {&ProcessImage::memory_of, &ProcessImage::descriptors_of, &ProcessImage::fs_of, &ProcessImage::sighand_of}) {
      if (process.*owner_of < 0) continue;
      const ProcessImage& owner = tree.processes[static_cast<size_t>(process.*owner_of)];
      if (owner.pid == process.parent_pid || owner.parent_pid == process.parent_pid) continue;
      const auto parent = by_pid.find(process.parent_pid);
      if (parent != by_pid.end() && parent->second->*owner_of == process.*owner_of) continue;
      reasons.add(Code::kUnsupported, fmt::format("process {} shares memory, descriptors, folders or handlers with "
                                                  "process {}, which is neither its parent nor its sibling",
                                                  process.pid, owner.pid));
    }
  }
}

/// A process group is of one session. A number of 0 stands for somebody outside whom this pid namespace cannot see.
void check_groups(const TreeImage& tree, const std::map<int, const ProcessImage*>& by_pid, Reasons& reasons) {
  std::map<int, const ProcessImage*> first_of_group;
  for (const ProcessImage& process : tree.processes) {
    if (process.outside_session || process.outside_group || process.session <= 0 || process.group <= 0) continue;
    const ProcessImage* member = first_of_group.emplace(process.group, &process).first->second;
    if (const auto leader = by_pid.find(process.group); leader != by_pid.end() && !leader->second->outside_session)
      member = leader->second;
    if (member->session != process.session) {
      reasons.add(
          Code::kUnsupported,
          fmt::format("process {} is in process group {}, and not in the session {} of process {}, which is in it too",
                      process.pid, process.group, member->session, member->pid));
    }
  }
}

/// The number of a leader that has ended is given out again for a moment: to a helper.
void check_numbers_of_leaders(const TreeImage& tree, const std::map<int, const ProcessImage*>& by_pid,
                              Reasons& reasons) {
  std::map<int, int> threads;
  for (const ProcessImage& process : tree.processes) {
    for (const store::Thread& thread : process.threads) {
      if (thread.tid != process.pid) threads.emplace(thread.tid, process.pid);
    }
  }
  auto check = [&](int number, const char* what) {
    const auto thread = by_pid.count(number) == 0 ? threads.find(number) : threads.end();
    if (thread != threads.end())
      reasons.add(Code::kUnsupported,
                  fmt::format("{} {} has the number of a thread of process {}", what, number, thread->second));
  };
  for (const ProcessImage& process : tree.processes) {
    if (!process.outside_session) check(process.session, "session");
    if (!process.outside_group) check(process.group, "process group");
  }
}

/// The batches that set up what is left of a process are calls that its own filters may refuse, or end it for.
void check_filters(const TreeImage& tree, Reasons& reasons) {
  if (proc::suspend_seccomp_option() != 0) return;
  for (const ProcessImage& process : tree.processes) {
    if (!process.seccomp.threads.empty())
      reasons.add(Error(Code::kPermission, fmt::format("process {}", process.pid),
                        "its seccomp filters need CAP_SYS_ADMIN, and a ckpt without any"));
  }
}

void check_policies(const TreeImage& tree, Reasons& reasons) {
  for (const ProcessImage& process : tree.processes) {
    for (const auto& thread : process.threads)
      check_policy(thread.policy, fmt::format("thread {}", thread.tid), reasons);
    for (const auto& mapping : process.policies)
      check_policy(mapping.policy, fmt::format("process {}, mapping {:x}", process.pid, mapping.start), reasons);
  }
}

/// The thread of the kernel that polls a ring would have rights outside, or keep its process from entering.
void check_polled_rings(const TreeImage& tree, Reasons& reasons) {
  for (const store::IoUring& ring : tree.io_urings) {
    const auto process = static_cast<size_t>(ring.process);
    if (ring.poller.empty() || state::further_of(tree, process, "mnt") < 0) continue;
    reasons.add(Code::kUnsupported,
                fmt::format("process {}: an io_uring that a thread of the kernel polls (IORING_SETUP_SQPOLL), in a "
                            "mount namespace that is not the first process's, is not supported",
                            tree.processes[process].pid));
  }
  const bool polled = std::any_of(tree.io_urings.begin(), tree.io_urings.end(),
                                  [](const store::IoUring& ring) { return !ring.poller.empty(); });
  if (!polled || !tree.namespaces.has("user")) return;
  reasons.add(Code::kUnsupported,
              "an io_uring that a thread of the kernel polls (IORING_SETUP_SQPOLL), of processes in a user namespace "
              "of their own, is not supported");
}

}  // namespace

void check_plan(const TreeImage& tree, Reasons& reasons) {
  std::map<int, const ProcessImage*> by_pid;
  for (const ProcessImage& process : tree.processes) by_pid.emplace(process.pid, &process);
  check_sharing(tree, by_pid, reasons);
  check_groups(tree, by_pid, reasons);
  check_pid_namespaces(tree, reasons);
  check_numbers_of_leaders(tree, by_pid, reasons);
  check_pid_max(tree, reasons);
  for (const ProcessImage& process : tree.processes) check_timers(process, reasons);
  check_filters(tree, reasons);
  check_polled_rings(tree, reasons);
  check_policies(tree, reasons);
  check_descriptor_room(tree, reasons);
  check_external(tree, {}, reasons);
}

namespace {

Error refusal(const store::Manifest& manifest, Code code, const Error& why, const char* hint) {
  const ProcessImage& root = manifest.tree.root();
  Error out(code, fmt::format("process {} ({})", root.pid, root.threads.empty() ? "?" : root.threads[0].comm),
            "could not be restored from this image: it is not kept");
  if (why.causes.empty()) out.causes.push_back(why.text());
  else out.causes = why.causes;
  return std::move(out).with_hint(hint);
}

}  // namespace

Result<void> check_before_end(const store::Manifest& manifest, bool ends) {
  if (auto valid = validate(manifest.tree); !valid) return refusal(manifest, Code::kUnsupported, valid.error(), "");
  Reasons never;
  check_vdso(manifest.tree, never);
  check_plan(manifest.tree, never);
  check_places(manifest.tree, never);
  // What ckpt may not do now, somebody else may: the rights of who restores are not known here.
  if (auto verdict = never.verdict(""); !verdict && verdict.error().code != Code::kPermission)
    return refusal(manifest, Code::kUnsupported, verdict.error(), "");
  if (!ends) return {};
  Reasons now;
  check_files(manifest.tree, now, null_progress());
  if (auto verdict = now.verdict(""); !verdict)
    return refusal(manifest, Code::kBusy, verdict.error(), "these files changed while the image was taken: try again");
  return {};
}

}  // namespace ckpt::restore
