#include "lib/state/descriptors/inherited.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace ckpt::restore {

namespace {

constexpr size_t kOwn = 64;  // what ckpt itself needs

/// Above every number that a process of the tree uses.
int base_of(const store::TreeImage& tree) {
  int out = 0;
  for (const auto& descriptor : tree.descriptors) {
    for (const auto& fd : descriptor.fds) out = std::max(out, fd.fd + 1);
    // Numbers that epoll sets watch something under, though it has none or another by now, are used for a moment.
    for (const auto& entry : descriptor.epoll.entries) out = std::max(out, entry.target_fd + 1);
  }
  return out;
}

}  // namespace

void check_descriptor_room(const store::TreeImage& tree, Reasons& reasons) {
  rlimit limit{};
  const rlim_t least = static_cast<rlim_t>(base_of(tree)) + kOwn;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max >= least) return;
  reasons.add(Code::kNoRoom,
              fmt::format("restore needs descriptors up to number {}, and the hard limit of open files is {}", least,
                          limit.rlim_max));
  reasons.hint("raise the hard limit of open files (ulimit -Hn)");
}

Result<Inherited> Inherited::create(const store::TreeImage& tree) {
  Inherited out;
  out.base_ = base_of(tree);
  // Files may be opened twice: once for a mapping, once for a descriptor.
  rlim_t needed = static_cast<rlim_t>(out.base_) + tree.files.size() * 4 + tree.descriptors.size() +
                  tree.pipes.size() * 2 + tree.shared_memory.size() + kOwn;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return sys_error("", "cannot read the limit of descriptors");
  if (limit.rlim_cur < needed && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return sys_error("", "cannot raise the limit of descriptors");
  }
  return out;
}

Result<int> Inherited::keep(UniqueFd fd, const std::string& subject) { return keep_copy(fd.get(), subject); }

Result<int> Inherited::keep_copy(int fd, const std::string& subject) {
  int number = ::fcntl(fd, F_DUPFD_CLOEXEC, base_);
  if (number < 0 && (errno == EMFILE || errno == EINVAL)) {
    return Error(Code::kNoRoom, subject, "no descriptor is left for it")
        .with_hint("raise the hard limit of open files (ulimit -Hn)");
  }
  if (number < 0) return sys_error(subject, "cannot be duplicated");
  fds_[number] = UniqueFd(number);
  return number;
}

void Inherited::close(int fd) { fds_.erase(fd); }

}  // namespace ckpt::restore
