#include "lib/state/external/restore.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

namespace {

/// What the caller of ckpt left open, as opposed to what ckpt opened itself: that closes on exec.
bool is_external(int fd) {
  int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

}  // namespace

std::vector<std::pair<int, store::FdSlot>> take_external(const store::Descriptor& descriptor, bool shell_job,
                                                         Inherited& inherited, Reasons& reasons) {
  std::vector<std::pair<int, store::FdSlot>> out;
  if (!shell_job) {
    reasons.add(Code::kUsage, fmt::format("{} is {}, which comes from outside its tree", subject_of(descriptor),
                                          descriptor.external));
    reasons.hint("--shell-job takes terminals and outer pipes from ckpt's own descriptors of the same numbers");
    return out;
  }
  int first = -1;
  for (const auto& slot : descriptor.fds) {
    if (first < 0 && is_external(slot.fd)) first = slot.fd;
  }
  if (first < 0) {
    reasons.add(Code::kUsage, fmt::format("{} was {}: ckpt has no open descriptor of that number to give",
                                          subject_of(descriptor), descriptor.external));
    return out;
  }
  for (const auto& slot : descriptor.fds) {
    auto source = inherited.keep_copy(is_external(slot.fd) ? slot.fd : first, subject_of(descriptor));
    if (!source) return reasons.add(source.error()), out;
    out.emplace_back(*source, slot);
  }
  return out;
}

}  // namespace ckpt::restore
