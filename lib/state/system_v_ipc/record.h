// System V shared memory, semaphores and message queues: what the manifest says of them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "lib/state/posix_queues/record.h"

namespace ckpt::store {

/// What every System V object has. Times and the process that made it are the kernel's own: those of a restored object
/// are of its restore.
struct IpcIdentity {
  int id = 0;
  int32_t key = 0;  ///< 0: IPC_PRIVATE, or removed while still attached
  uint32_t mode = 0, uid = 0, gid = 0;
  bool operator==(const IpcIdentity&) const = default;
};

/// Its bytes are pages of the image.
struct SharedSegment {
  IpcIdentity identity;
  uint64_t size = 0;       ///< as it was asked for; the memory is whole pages
  bool destroyed = false;  ///< IPC_RMID was called: it goes with the last attachment
  bool locked = false;     ///< SHM_LOCK
  bool operator==(const SharedSegment&) const = default;
};

struct Semaphore {
  int value = 0;
  int pid = 0;  ///< of the last operation
  bool operator==(const Semaphore&) const = default;
};

struct SemaphoreSet {
  IpcIdentity identity;
  std::vector<Semaphore> semaphores;
  bool operator==(const SemaphoreSet&) const = default;
};

/// What the kernel would do to a set at the end of a process (SEM_UNDO).
struct SemaphoreAdjustments {
  int process = 0;           ///< index into TreeImage::processes
  int set = 0;               ///< index into SystemVIpc::sets
  std::vector<int> changes;  ///< what would be added to each semaphore of the set
  bool operator==(const SemaphoreAdjustments&) const = default;
};

struct IpcMessage {
  int64_t type = 0;
  std::vector<uint8_t> bytes;
  bool operator==(const IpcMessage&) const = default;
};

struct IpcQueue {
  IpcIdentity identity;
  uint64_t max_bytes = 0;
  int sender = 0, receiver = 0;  ///< pids of the last ones, 0: none yet
  std::vector<IpcMessage> messages;
  bool operator==(const IpcQueue&) const = default;
};

struct SystemVIpc {
  std::vector<SharedSegment> segments;
  std::vector<SemaphoreSet> sets;
  std::vector<IpcQueue> queues;
  std::vector<SemaphoreAdjustments> adjustments;
  bool operator==(const SystemVIpc&) const = default;
};

template <class A, class Identity>
void describe_identity(A& a, Identity& i) {
  a.number("id", i.id, 0);
  a.number("key", i.key);
  a.number("mode", i.mode, 0, 0777);
  a.number("uid", i.uid);
  a.number("gid", i.gid);
}

template <class A>
void describe(A& a, typename A::template Of<SharedSegment> s) {
  describe_identity(a, s.identity);
  a.number("size", s.size);
  a.flag("destroyed", s.destroyed);
  a.flag("locked", s.locked);
}

template <class A>
void describe(A& a, typename A::template Of<Semaphore> s) {
  a.number("value", s.value, 0, 32767);
  a.number("pid", s.pid, 0);
}

template <class A>
void describe(A& a, typename A::template Of<SemaphoreSet> s) {
  describe_identity(a, s.identity);
  a.list("semaphores", s.semaphores);
}

template <class A>
void describe(A& a, typename A::template Of<SemaphoreAdjustments> s) {
  a.number("process", s.process, 0);
  a.number("set", s.set, 0);
  a.numbers("changes", s.changes);
}

template <class A>
void describe(A& a, typename A::template Of<IpcMessage> m) {
  a.number("type", m.type, 1, std::numeric_limits<int64_t>::max() - 1);
  a.octets("bytes", m.bytes, 0, kIpcMaxMessage);
}

template <class A>
void describe(A& a, typename A::template Of<IpcQueue> q) {
  describe_identity(a, q.identity);
  a.number("max_bytes", q.max_bytes);
  a.number("sender", q.sender, 0);
  a.number("receiver", q.receiver, 0);
  a.list("messages", q.messages);
}

template <class A>
void describe(A& a, typename A::template Of<SystemVIpc> i) {
  a.list("segments", i.segments);
  a.list("sets", i.sets);
  a.list("queues", i.queues);
  a.optional().list("adjustments", i.adjustments);
}

}  // namespace ckpt::store
