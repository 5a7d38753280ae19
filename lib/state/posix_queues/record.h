// POSIX message queues: what the manifest says of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::store {

/// Of POSIX and System V queues.
inline constexpr size_t kIpcMaxMessage = 64 << 20;

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

template <class A>
void describe(A& a, typename A::template Of<PosixMessage> m) {
  a.number("priority", m.priority);
  a.octets("bytes", m.bytes, 0, kIpcMaxMessage);
}

template <class A>
void describe(A& a, typename A::template Of<PosixQueue> q) {
  a.text("name", q.name);
  a.flag("deleted", q.deleted);
  a.number("max_messages", q.max_messages, 1);
  a.number("message_size", q.message_size, 1);
  a.number("mode", q.mode, 0, 07777);
  a.number("uid", q.uid);
  a.number("gid", q.gid);
  a.number("waiting", q.waiting);
  a.list("messages", q.messages);
}

}  // namespace ckpt::store
