#include "lib/state/credentials/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "lib/base/io.h"
#include "lib/proc/procfs.h"
#include "lib/state/namespaces/user.h"

namespace ckpt::restore {

namespace {

struct Own {
  proc::Status status;
  unsigned securebits = 0;
};

Result<Own> read_own() {
  Own out;
  CKPT_TRY_ASSIGN(out.status, proc::read_status(::getpid(), ::getpid()));
  out.securebits = static_cast<unsigned>(::prctl(PR_GET_SECUREBITS, 0, 0, 0, 0));
  return out;
}

constexpr uint32_t kUnchanged = ~0u;  // of setresuid and its like

/// In a user namespace: as who made it, or as the process has entered it, with all capabilities.
Result<Own> own_inside(const state::TreeUser& user, const store::Thread& first) {
  Own out;
  const state::Birth as = user.birth ? *user.birth : state::Birth{0, 0, first.groups};
  out.status.groups.assign(as.groups.begin(), as.groups.end());
  for (size_t i = 0; i < first.uid.size(); ++i) {
    out.status.uid[i] = user.birth ? as.uid : first.uid[i];
    out.status.gid[i] = user.birth ? as.gid : first.gid[i];
  }
  constexpr uint64_t kLimit = 64;
  CKPT_TRY_ASSIGN(const std::string last, io::read_file("/proc/sys/kernel/cap_last_cap", kLimit));
  const uint64_t all = (uint64_t{2} << std::clamp(std::atoi(last.c_str()), 0, 62)) - 1;
  out.status.cap_permitted = out.status.cap_effective = out.status.cap_bounding = all;
  return out;
}

/// As the kernel is told in a user namespace.
store::Thread with_ids_inside(const store::Thread& thread, const store::UserNamespace& user) {
  store::Thread out = thread;
  for (uint32_t& id : out.uid) id = state::id_inside(user.uids, id).value_or(kUnchanged);
  for (uint32_t& id : out.gid) id = state::id_inside(user.gids, id).value_or(kUnchanged);
  for (uint32_t& id : out.groups) id = state::id_inside(user.gids, id).value_or(kUnchanged);
  return out;
}

bool same_groups(const store::Thread& thread, const Own& own) {
  std::vector<unsigned> theirs(thread.groups.begin(), thread.groups.end()), ours = own.status.groups;
  std::sort(theirs.begin(), theirs.end());
  std::sort(ours.begin(), ours.end());
  return theirs == ours;
}

bool same_ids(const store::Thread& thread, const Own& own) {
  return std::equal(thread.uid.begin(), thread.uid.end(), own.status.uid) &&
         std::equal(thread.gid.begin(), thread.gid.end(), own.status.gid);
}

bool same_capabilities(const store::Thread& thread, const Own& own) {
  const proc::Status& s = own.status;
  return thread.cap_inheritable == s.cap_inheritable && thread.cap_permitted == s.cap_permitted &&
         thread.cap_effective == s.cap_effective && thread.cap_bounding == s.cap_bounding &&
         thread.cap_ambient == s.cap_ambient;
}

void set_ids(const store::Thread& recorded, const Own& own, RestorerArea& area, SyscallBatch& batch,
             const store::UserNamespace* inside = nullptr) {
  const store::Thread thread = inside != nullptr ? with_ids_inside(recorded, *inside) : recorded;
  if (!same_groups(recorded, own)) {
    ByteSpan groups(reinterpret_cast<const std::byte*>(thread.groups.data()), thread.groups.size() * sizeof(uint32_t));
    batch.add("set the groups", SYS_setgroups, thread.groups.size(), area.put_bytes(groups));
  }
  if (same_ids(recorded, own)) return;
  batch.add("set the group ids", SYS_setresgid, thread.gid[0], thread.gid[1], thread.gid[2]);
  batch.add("set the group id of files", SYS_setfsgid, thread.gid[3]);
  batch.add("set the user ids", SYS_setresuid, thread.uid[0], thread.uid[1], thread.uid[2]);
  batch.add("set the user id of files", SYS_setfsuid, thread.uid[3]);
}

/// The bounding set first, for dropping from it needs CAP_SETPCAP; ambient last, for it must lie within the others.
void set_capabilities(const store::Thread& thread, const Own& own, RestorerArea& area, SyscallBatch& batch) {
  for (unsigned cap = 0; cap < 64; ++cap) {
    bool have = (own.status.cap_bounding >> cap & 1) != 0, want = (thread.cap_bounding >> cap & 1) != 0;
    if (have && !want) batch.add("drop a capability for good", SYS_prctl, PR_CAPBSET_DROP, cap, 0, 0, 0);
  }
  if (own.securebits != thread.securebits || !same_ids(thread, own))
    batch.add("set the secure bits", SYS_prctl, PR_SET_SECUREBITS, thread.securebits, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2];
  for (unsigned half = 0; half < 2; ++half) {
    data[half].effective = static_cast<uint32_t>(thread.cap_effective >> (32 * half));
    data[half].permitted = static_cast<uint32_t>(thread.cap_permitted >> (32 * half));
    data[half].inheritable = static_cast<uint32_t>(thread.cap_inheritable >> (32 * half));
  }
  ByteSpan bytes(reinterpret_cast<const std::byte*>(data), sizeof data);
  batch.add("set the capabilities", SYS_capset, area.put(header), area.put_bytes(bytes));
  for (unsigned cap = 0; cap < 64; ++cap) {
    if ((thread.cap_ambient >> cap & 1) != 0)
      batch.add("set an ambient capability", SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
  }
}

}  // namespace

namespace {

/// Whether each id is one inside, or what the thread has anyway.
bool can_have_ids(const store::Thread& thread, const Own& own, const store::UserNamespace& user) {
  for (size_t i = 0; i < thread.uid.size(); ++i) {
    if (thread.uid[i] != own.status.uid[i] && !state::id_inside(user.uids, thread.uid[i])) return false;
    if (thread.gid[i] != own.status.gid[i] && !state::id_inside(user.gids, thread.gid[i])) return false;
  }
  if (same_groups(thread, own)) return true;
  return !user.denies_setgroups && std::all_of(thread.groups.begin(), thread.groups.end(), [&](uint32_t group) {
    return state::id_inside(user.gids, group).has_value();
  });
}

}  // namespace

Result<void> check_credentials(const store::TreeImage& tree) {
  const state::TreeUser* user = state::tree_user();
  if (user == nullptr) return {};
  for (const store::Descriptor& descriptor : tree.descriptors) {
    // Opened with ckpt's rights, by which the kernel then judges what is written.
    const bool is_map = descriptor.kind == store::DescriptorKind::kProcFile &&
                        (descriptor.external.ends_with("id_map") || descriptor.external.ends_with("/setgroups"));
    if (is_map && (descriptor.flags & O_ACCMODE) != O_RDONLY)
      return fail(Code::kUnsupported, descriptor.external, "is open for writing in a user namespace");
  }
  for (const store::ProcessImage& process : tree.processes) {
    if (process.zombie) continue;
    if (!user->birth && process.fs_of >= 0) {
      return fail(Code::kUnsupported, fmt::format("process {}", process.pid),
                  "shares its folders with another one, and such cannot enter a user namespace");
    }
    CKPT_TRY_ASSIGN(const Own own, own_inside(*user, process.threads[0]));
    for (const store::Thread& thread : process.threads) {
      if (can_have_ids(thread, own, user->what)) continue;
      return fail(Code::kUnsupported, fmt::format("thread {}", thread.tid),
                  "has ids that its user namespace has no numbers for, and other ones than its maker");
    }
  }
  return {};
}

Result<void> enter_user_namespace(const store::ProcessImage& image, int handle, RestorerArea& area,
                                  SyscallBatch& batch) {
  const state::TreeUser* user = state::tree_user();
  if (user == nullptr || user->birth) return {};
  const store::Thread& first = image.threads[0];
  CKPT_TRY_ASSIGN(const Own own, read_own());
  if (!same_ids(first, own) || !same_groups(first, own)) {
    batch.add("keep capabilities", SYS_prctl, PR_SET_SECUREBITS, own.securebits | SECBIT_NO_SETUID_FIXUP, 0, 0, 0);
    set_ids(first, own, area, batch);
  }
  batch.add("enter the user namespace", SYS_setns, handle, CLONE_NEWUSER);
  return {};
}

Result<void> set_credentials(const store::ProcessImage& image, RestorerArea& area, ThreadBatches& batches) {
  const state::TreeUser* user = state::tree_user();
  CKPT_TRY_ASSIGN(const Own own, user != nullptr ? own_inside(*user, image.threads[0]) : read_own());
  for (size_t i = 0; i < image.threads.size(); ++i) {
    const store::Thread& thread = image.threads[i];
    bool same = same_ids(thread, own) && same_groups(thread, own) && same_capabilities(thread, own) &&
                thread.securebits == own.securebits;
    if (!same) {
      // While this is set a change of user leaves the capabilities alone.
      if (!same_ids(thread, own))
        batches[i].add("keep capabilities", SYS_prctl, PR_SET_SECUREBITS, own.securebits | SECBIT_NO_SETUID_FIXUP, 0, 0,
                       0);
      if (own.status.cap_ambient != 0)
        batches[i].add("clear the ambient capabilities", SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
      set_ids(thread, own, area, batches[i], user != nullptr ? &user->what : nullptr);
      set_capabilities(thread, own, area, batches[i]);
    }
    if (thread.no_new_privs) batches[i].add("give up new privileges", SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  }
  return {};
}

namespace {

void set_effective(const Own& own, uint64_t effective, RestorerArea& area, SyscallBatch& batch) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2];
  for (unsigned half = 0; half < 2; ++half) {
    data[half].effective = static_cast<uint32_t>(effective >> (32 * half));
    data[half].permitted = static_cast<uint32_t>(own.status.cap_permitted >> (32 * half));
    data[half].inheritable = static_cast<uint32_t>(own.status.cap_inheritable >> (32 * half));
  }
  ByteSpan bytes(reinterpret_cast<const std::byte*>(data), sizeof data);
  batch.add("set the capabilities", SYS_capset, area.put(header), area.put_bytes(bytes));
}

/// ckpt's own, as those of a thread.
store::Thread as_thread(const Own& own) {
  store::Thread out;
  std::copy(std::begin(own.status.uid), std::end(own.status.uid), out.uid.begin());
  std::copy(std::begin(own.status.gid), std::end(own.status.gid), out.gid.begin());
  out.groups.assign(own.status.groups.begin(), own.status.groups.end());
  return out;
}

}  // namespace

Result<void> add_with_credentials(const store::Thread& thread, RestorerArea& area, SyscallBatch& batch,
                                  const std::function<void()>& calls) {
  CKPT_TRY_ASSIGN(Own own, read_own());
  const bool same = same_ids(thread, own) && same_groups(thread, own);
  if (!same)
    batch.add("keep capabilities", SYS_prctl, PR_SET_SECUREBITS, own.securebits | SECBIT_NO_SETUID_FIXUP, 0, 0, 0);
  set_ids(thread, own, area, batch);
  set_effective(own, thread.cap_effective, area, batch);
  calls();
  set_effective(own, own.status.cap_effective, area, batch);
  if (same) return {};
  // From the thread's to ckpt's: the same calls, as if those of ckpt were the thread's.
  const store::Thread back = as_thread(own);
  Own theirs = own;
  std::copy(thread.uid.begin(), thread.uid.end(), std::begin(theirs.status.uid));
  std::copy(thread.gid.begin(), thread.gid.end(), std::begin(theirs.status.gid));
  theirs.status.groups.assign(thread.groups.begin(), thread.groups.end());
  set_ids(back, theirs, area, batch);
  batch.add("set the secure bits", SYS_prctl, PR_SET_SECUREBITS, own.securebits, 0, 0, 0);
  return {};
}

}  // namespace ckpt::restore
