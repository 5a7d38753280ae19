// The members of System V objects and POSIX message queues in the manifest; see manifest_fields.h.
#pragma once

#include <limits>

#include "lib/store/ipc_image.h"

namespace ckpt::store {

inline constexpr size_t kIpcMaxMessage = 64 << 20;

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
}

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
