// Open file descriptions, and the descriptors that lead to them: what the manifest says of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/state/epoll/record.h"
#include "lib/state/eventfd/record.h"
#include "lib/state/locks/record.h"
#include "lib/state/signalfd/record.h"
#include "lib/state/timerfd/record.h"

namespace ckpt::store {

/// Kinds that are all in their own descriptor: KIND(struct, member of Descriptor and name in the manifest, the kernel's
/// name of the anonymous inode). Their functions, by these names: kind_functions.h.
#define CKPT_PLAIN_KINDS(KIND)           \
  KIND(Epoll, epoll, "[eventpoll]")      \
  KIND(Eventfd, eventfd, "[eventfd]")    \
  KIND(Signalfd, signalfd, "[signalfd]") \
  KIND(Timerfd, timerfd, "[timerfd]")

/// Adding one: CONTRIBUTING.md, "A new kind of descriptor".
enum class DescriptorKind {
  kFile,        ///< regular file, folder: `file`, flags, offset
  kDevice,      ///< /dev/null, zero, full, random, urandom: opened again by path
  kPipe,        ///< both ends inside the process: `pipe`
  kExternal,    ///< terminal or pipe from outside the tree (external/options.h)
  kMemfd,       ///< `shared_memory`
  kFifo,        ///< named pipe: `file`, `pipe`
  kProcFile,    ///< a file of /proc/PID of a process in the tree: `external` is its path
  kSocket,      ///< `object`: index into TreeImage::sockets
  kTerminal,    ///< `object`: index into TreeImage::terminal_ends
  kInotify,     ///< `object`: index into TreeImage::inotifies
  kFanotify,    ///< `object`: index into TreeImage::fanotifies
  kPidfd,       ///< `object`: index into TreeImage::process_handles
  kPosixQueue,  ///< `object`: index into TreeImage::posix_queues
  kIoUring,     ///< `object`: index into TreeImage::io_urings
#define CKPT_ENUMERATOR(Type, member, inode) k##Type,
  CKPT_PLAIN_KINDS(CKPT_ENUMERATOR)
#undef CKPT_ENUMERATOR
};

/// A number in a descriptor table.
struct FdSlot {
  int process = 0;  ///< whose table it is, an index into TreeImage::processes (its descriptors_of is -1)
  int fd = 0;
  bool close_on_exec = false;
  bool operator==(const FdSlot&) const = default;
};

/// One open file description; `fds` are the descriptors that share it (dup, fork, SCM_RIGHTS). None: it is in flight,
/// in a socket's queue.
struct Descriptor {
  DescriptorKind kind = DescriptorKind::kFile;
  std::vector<FdSlot> fds;
  int flags = 0;                          ///< O_* as fdinfo gives them
  uint64_t offset = 0;
  int file = -1;                          ///< kFile, kDevice, kFifo: index into TreeImage::files
  int shared_memory = -1;                 ///< kMemfd: index into TreeImage::shared_memory
  std::string external;                   ///< kExternal: "tty /dev/pts/3", "pipe:[123]"; kProcFile: "/proc/12/status"
  bool becomes_null = false;              ///< kExternal, a pipe: /dev/null takes its place
  bool written_by_process = false;        ///< open for writing: the file may have grown, the recorded offset counts
  int object = -1;                        ///< of the kinds that say so
  int pipe = -1;                          ///< kPipe, kFifo: index into TreeImage::pipes
#define CKPT_MEMBER(Type, member, inode) Type member;
  CKPT_PLAIN_KINDS(CKPT_MEMBER)
#undef CKPT_MEMBER
  int owner_type = 0, owner_pid = 0, owner_signal = 0;  ///< F_SETOWN_EX, F_SETSIG; 0: none
  std::vector<FileLock> locks;    ///< all but kPosix: those that belong to the description
  const FileLock* lease() const;  ///< nullptr: it has none
  bool is_open_as(int process, int fd) const;
  bool operator==(const Descriptor&) const = default;
};

inline const FileLock* Descriptor::lease() const {
  auto found = std::find_if(locks.begin(), locks.end(), [](const FileLock& l) { return l.kind == LockKind::kLease; });
  return found == locks.end() ? nullptr : &*found;
}

inline bool Descriptor::is_open_as(int process, int fd) const {
  return std::any_of(fds.begin(), fds.end(),
                     [&](const FdSlot& slot) { return slot.process == process && slot.fd == fd; });
}

/// What holds for all descriptors of a kind.
struct DescriptorKindFacts {
  DescriptorKind kind;
  const char* name;   ///< in the manifest
  const char* label;  ///< for people
  /// Which of its indices lead somewhere.
  enum Refers : unsigned { kNothing = 0, kToFile = 1, kToPipe = 2, kToSharedMemory = 4, kToObject = 8 };
  unsigned refers = kNothing;
  bool has_owner = false;          ///< F_SETOWN has a meaning: somebody can be told what happens to it
  bool opened_by_process = false;  ///< a process opens it again itself: two processes cannot share one
};

/// A row for each kind, in the order of the enumeration.
inline constexpr auto kDescriptorKinds = std::to_array<DescriptorKindFacts>(
    {{DescriptorKind::kFile, "file", "file", DescriptorKindFacts::kToFile},
     {DescriptorKind::kDevice, "device", "device", DescriptorKindFacts::kToFile},
     {DescriptorKind::kPipe, "pipe", "pipe", DescriptorKindFacts::kToPipe, true},
     {DescriptorKind::kExternal, "external", "external", DescriptorKindFacts::kNothing, true},
     {DescriptorKind::kMemfd, "memfd", "memfd", DescriptorKindFacts::kToSharedMemory},
     {DescriptorKind::kFifo, "fifo", "fifo", DescriptorKindFacts::kToFile | DescriptorKindFacts::kToPipe, true},
     {DescriptorKind::kProcFile, "proc-file", "proc file", DescriptorKindFacts::kNothing, true, true},
     {DescriptorKind::kSocket, "socket", "socket", DescriptorKindFacts::kToObject, true},
     {DescriptorKind::kTerminal, "terminal", "terminal", DescriptorKindFacts::kToObject, true},
     {DescriptorKind::kInotify, "inotify", "inotify", DescriptorKindFacts::kToObject, true},
     {DescriptorKind::kFanotify, "fanotify", "fanotify", DescriptorKindFacts::kToObject, true},
     {DescriptorKind::kPidfd, "pidfd", "pidfd", DescriptorKindFacts::kToObject, false, true},
     {DescriptorKind::kPosixQueue, "posix-queue", "message queue", DescriptorKindFacts::kToObject, true},
     {DescriptorKind::kIoUring, "io_uring", "io_uring", DescriptorKindFacts::kToObject},
#define CKPT_ROW(Type, member, inode) {DescriptorKind::k##Type, #member, #member},
     CKPT_PLAIN_KINDS(CKPT_ROW)
#undef CKPT_ROW
    });

constexpr const DescriptorKindFacts& facts_of(DescriptorKind kind) {
  return kDescriptorKinds[static_cast<size_t>(kind)];
}

/// Names in the manifest, parallel to the rows above.
inline constexpr auto kDescriptorNames = [] {
  std::array<const char*, kDescriptorKinds.size()> out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = kDescriptorKinds[i].name;
  return out;
}();

static_assert([] {
  for (size_t i = 0; i < kDescriptorKinds.size(); ++i) {
    if (static_cast<size_t>(kDescriptorKinds[i].kind) != i || kDescriptorKinds[i].label == nullptr) return false;
  }
  return true;
}(), "each kind has its row, in order");

template <class A>
void describe(A& a, typename A::template Of<Descriptor> d) {
  a.choice("kind", d.kind, kDescriptorNames);
  a.list("fds", d.fds, [](auto& sub, auto& fd) {
    sub.number("process", fd.process, 0);
    sub.number("fd", fd.fd, 0);
    sub.flag("cloexec", fd.close_on_exec);
  });
  a.number("flags", d.flags);
  a.number("offset", d.offset);
  a.number("file", d.file, -1);
  a.number("shared_memory", d.shared_memory, -1);
  a.text("external", d.external);
  a.optional().flag("becomes_null", d.becomes_null);
  a.flag("written_by_process", d.written_by_process);
  a.number("object", d.object, -1);
  a.number("pipe", d.pipe, -1);
#define CKPT_DESCRIBE(Type, member, inode) describe<A>(a, d.member);
  CKPT_PLAIN_KINDS(CKPT_DESCRIBE)
#undef CKPT_DESCRIBE
  a.number("owner_type", d.owner_type);
  a.number("owner_pid", d.owner_pid);
  a.number("owner_signal", d.owner_signal);
  a.list("locks", d.locks);
}

}  // namespace ckpt::store
