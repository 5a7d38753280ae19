#include "lib/state/posix_queues/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <mqueue.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace ckpt::restore {

namespace {

/// The kernel wants the name without its slash.
UniqueFd open_queue(const std::string& name, int flags, const mq_attr* attributes) {
  return UniqueFd(static_cast<int>(::syscall(SYS_mq_open, name.c_str() + 1, flags | O_CLOEXEC, 0600, attributes)));
}

Result<UniqueFd> create(const store::PosixQueue& queue, const std::string& name) {
  mq_attr attributes{};
  attributes.mq_maxmsg = queue.max_messages, attributes.mq_msgsize = queue.message_size;
  UniqueFd fd = open_queue(name, O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK, &attributes);
  if (!fd) return sys_error(queue.name, "cannot be made again");
  if (::fchown(fd.get(), queue.uid, queue.gid) != 0 || ::fchmod(fd.get(), queue.mode) != 0) {
    int error = errno;
    (void)::syscall(SYS_mq_unlink, name.c_str() + 1);
    return sys_error(error, queue.name, "cannot set its owner and mode");
  }
  return fd;
}

/// Under its old name if that is free, so that /proc shows the same.
Result<UniqueFd> create_unlinked(const store::PosixQueue& queue) {
  std::string name = queue.name;
  auto made = create(queue, name);
  if (!made && made.error().sys_errno == EEXIST) {
    name = fmt::format("/ckpt-{}-{}", ::getpid(), queue.name.substr(1, 200));
    made = create(queue, name);
  }
  if (!made) return made;
  (void)::syscall(SYS_mq_unlink, name.c_str() + 1);
  for (const auto& message : queue.messages) {
    if (::syscall(SYS_mq_timedsend, made->get(), message.bytes.data(), message.bytes.size(), message.priority,
                  nullptr) != 0)
      return sys_error(queue.name, "cannot be filled");
  }
  return made;
}

Result<UniqueFd> open_named(const store::PosixQueue& queue) {
  UniqueFd fd = open_queue(queue.name, O_RDWR | O_NONBLOCK, nullptr);
  if (!fd && errno == ENOENT) {
    if (queue.waiting == 0) return create(queue, queue.name);
    return fail(Code::kNotFound, queue.name, fmt::format("the message queue is gone, with {} messages", queue.waiting));
  }
  mq_attr attributes{};
  if (!fd || ::syscall(SYS_mq_getsetattr, fd.get(), nullptr, &attributes) != 0)
    return sys_error(queue.name, "the message queue cannot be opened");
  if (attributes.mq_maxmsg != queue.max_messages || attributes.mq_msgsize != queue.message_size)
    return fail(Code::kMismatch, queue.name, "the message queue is another one now: its limits differ");
  struct stat st{};
  if (::fstat(fd.get(), &st) != 0) return sys_error(queue.name, "the message queue cannot be described");
  // Anybody may take a name that was free meanwhile.
  if (st.st_uid != queue.uid || st.st_gid != queue.gid || (st.st_mode & 07777) != queue.mode)
    return fail(Code::kMismatch, queue.name, "the message queue is another one now: its owner or its mode differs");
  return fd;
}

}  // namespace

Result<PosixQueueBuilder> PosixQueueBuilder::make(const store::PosixQueue& queue) {
  if (queue.name.size() < 2 || queue.name[0] != '/')
    return fail(Code::kCorrupt, queue.name, "is no name of a message queue");
  CKPT_TRY_ASSIGN(UniqueFd fd, queue.deleted ? create_unlinked(queue) : open_named(queue));
  return PosixQueueBuilder(std::move(fd));
}

Result<UniqueFd> PosixQueueBuilder::open(int flags) const {
  UniqueFd out(
      ::open(fmt::format("/proc/self/fd/{}", fd_.get()).c_str(), (flags & (O_ACCMODE | O_NONBLOCK)) | O_CLOEXEC));
  if (!out) return sys_error("message queue", "cannot be opened");
  return out;
}

}  // namespace ckpt::restore
