#include "lib/state/posix_queues/capture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <mqueue.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"

namespace ckpt::capture {

namespace {

constexpr std::string_view kDeleted = " (deleted)";

/// Shared with the helper; the messages follow, each of `Slot` and its bytes in whole words.
struct Taken {
  uint64_t count, used, put_back;
  int error;
  bool done;
};
struct Slot {
  uint64_t size;
  uint32_t priority;
};

size_t padded(size_t size) { return (size + 7) / 8 * 8; }
std::byte* first_slot(Taken& taken) { return reinterpret_cast<std::byte*>(&taken) + padded(sizeof(Taken)); }

/// In the helper, which is a fork of a program with threads: no allocation.
void take_and_put_back(int in, int out, size_t room, size_t message_size, Taken& taken) {
  std::byte* at = first_slot(taken);
  timespec now{};  // long past: never waits, whatever O_NONBLOCK says
  while (taken.used + sizeof(Slot) + padded(message_size) <= room) {
    auto* slot = reinterpret_cast<Slot*>(at);
    ssize_t n = ::syscall(SYS_mq_timedreceive, in, at + sizeof(Slot), message_size, &slot->priority, &now);
    if (n < 0) break;
    slot->size = static_cast<uint64_t>(n);
    size_t step = sizeof(Slot) + padded(slot->size);
    at += step, taken.used += step, ++taken.count;
  }
  at = first_slot(taken);
  for (; taken.put_back < taken.count; ++taken.put_back) {
    auto* slot = reinterpret_cast<Slot*>(at);
    if (::syscall(SYS_mq_timedsend, out, at + sizeof(Slot), slot->size, slot->priority, &now) != 0) {
      taken.error = errno;
      break;
    }
    at += sizeof(Slot) + padded(slot->size);
  }
  taken.done = true;
}

Result<void> copy_messages(int fd, store::PosixQueue& queue) {
  // An unlinked queue can be opened again through /proc alone, whatever the access mode of the descriptor.
  UniqueFd both(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDWR | O_CLOEXEC));
  if (!both) return sys_error(queue.name, "cannot be opened for its messages");
  size_t room =
      (static_cast<size_t>(queue.max_messages)) * (sizeof(Slot) + padded(static_cast<size_t>(queue.message_size)));
  size_t whole = padded(sizeof(Taken)) + room;
  void* memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return sys_error(queue.name, "no memory for its messages");
  Mapping owner(memory, whole);
  Taken& taken = *static_cast<Taken*>(memory);
  sigset_t all, before;
  sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t helper = ::fork();
  if (helper == 0) {
    (void)::setsid();
    take_and_put_back(both.get(), both.get(), room, static_cast<size_t>(queue.message_size), taken);
    ::_exit(0);
  }
  int error = errno;
  while (helper > 0 && ::waitpid(helper, nullptr, 0) < 0 && errno == EINTR) {
  }
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (helper < 0) return fork_error(error, queue.name, "cannot start a helper to copy its messages");
  if (!taken.done || taken.put_back != taken.count) {
    return sys_error(taken.error, queue.name, "a message could not be put back").with_code(Code::kTargetAltered);
  }
  const std::byte* at = first_slot(taken);
  for (uint64_t i = 0; i < taken.count; ++i) {
    auto* slot = reinterpret_cast<const Slot*>(at);
    auto* bytes = reinterpret_cast<const uint8_t*>(at + sizeof(Slot));
    queue.messages.push_back({slot->priority, {bytes, bytes + slot->size}});
    at += sizeof(Slot) + padded(slot->size);
  }
  return {};
}

/// "QSIZE:6          NOTIFY:0     SIGNO:0     NOTIFY_PID:1234".
Result<int> notified_process(int fd, const std::string& name) {
  constexpr std::string_view kField = "NOTIFY_PID:";
  char text[256];
  ssize_t n = ::pread(fd, text, sizeof text, 0);
  std::string_view rest(text, n > 0 ? static_cast<size_t>(n) : 0);
  size_t at = rest.find(kField);
  int pid = 0;
  if (at == std::string_view::npos) return sys_error(name, "cannot tell whether somebody waits for a message");
  std::from_chars(text + at + kField.size(), text + n, pid);
  return pid;
}

}  // namespace

bool is_posix_queue(int fd) {
  constexpr long kMagic = 0x19800202;
  struct statfs fs{};
  struct stat st{};
  return ::fstatfs(fd, &fs) == 0 && fs.f_type == kMagic && ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

Result<store::PosixQueue> describe_posix_queue(int fd, std::string_view link, bool frozen) {
  store::PosixQueue out;
  struct stat st{};
  if (::fstat(fd, &st) != 0) return sys_error(std::string(link), "cannot stat");
  out.deleted = st.st_nlink == 0;
  if (out.deleted && link.size() > kDeleted.size()) link.remove_suffix(kDeleted.size());
  out.name = std::string(link.substr(std::min(link.rfind('/'), link.size())));  // without a mount point of the queues
  mq_attr attributes{};
  if (::syscall(SYS_mq_getsetattr, fd, nullptr, &attributes) != 0) return sys_error(out.name, "cannot be read");
  out.mode = st.st_mode & 07777, out.uid = st.st_uid, out.gid = st.st_gid;
  out.max_messages = attributes.mq_maxmsg, out.message_size = attributes.mq_msgsize;
  out.waiting = static_cast<uint64_t>(attributes.mq_curmsgs);
  CKPT_TRY_ASSIGN(UniqueFd readable, [&]() -> Result<UniqueFd> {
    UniqueFd again(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
    if (!again) return sys_error(out.name, "cannot be opened again");
    return again;
  }());
  CKPT_TRY_ASSIGN(int waiting, notified_process(readable.get(), out.name));
  if (waiting != 0) {
    return fail(Code::kUnsupported, "",
                fmt::format("the message queue {}, of which process {} waits to be notified, which is not supported",
                            out.name, waiting));
  }
  if (out.deleted && frozen && out.waiting != 0) CKPT_TRY(copy_messages(fd, out));
  return out;
}

}  // namespace ckpt::capture
