#include "lib/state/credentials/restore.h"

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "lib/proc/procfs.h"

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

void set_ids(const store::Thread& thread, const Own& own, RestorerArea& area, SyscallBatch& batch) {
  if (!same_groups(thread, own)) {
    ByteSpan groups(reinterpret_cast<const std::byte*>(thread.groups.data()), thread.groups.size() * sizeof(uint32_t));
    batch.add("set the groups", SYS_setgroups, thread.groups.size(), area.put_bytes(groups));
  }
  if (same_ids(thread, own)) return;
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

Result<void> set_credentials(const store::ProcessImage& image, RestorerArea& area, ThreadBatches& batches) {
  CKPT_TRY_ASSIGN(Own own, read_own());
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
      set_ids(thread, own, area, batches[i]);
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
