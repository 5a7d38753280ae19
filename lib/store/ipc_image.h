// System V objects and POSIX message queues in an image.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  bool operator==(const SystemVIpc&) const = default;
};

struct PosixMessage {
  uint32_t priority = 0;
  std::vector<uint8_t> bytes;
  bool operator==(const PosixMessage&) const = default;
};

/// One queue of mq_open, however many descriptors lead to it. A queue that has a name stays where it is, like a file,
/// and what waits in it is its own; of one that was unlinked the image has the messages.
struct PosixQueue {
  std::string name;  ///< "/name"
  bool deleted = false;
  int64_t max_messages = 0, message_size = 0;
  uint32_t mode = 0, uid = 0, gid = 0;
  uint64_t waiting = 0;                ///< messages at capture
  std::vector<PosixMessage> messages;  ///< deleted: in the order in which they are received
  bool operator==(const PosixQueue&) const = default;
};

}  // namespace ckpt::store
