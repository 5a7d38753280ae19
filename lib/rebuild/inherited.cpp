#include "lib/rebuild/inherited.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace ckpt::rebuild {

Result<Inherited> Inherited::create(const store::TreeImage& tree) {
  Inherited out;
  for (const auto& descriptor : tree.descriptors) {
    for (const auto& fd : descriptor.fds) out.base_ = std::max(out.base_, fd.fd + 1);
  }
  // Files may be opened twice: once for a mapping, once for a descriptor. ckpt itself needs a few.
  constexpr size_t kOwn = 64;
  rlim_t needed = static_cast<rlim_t>(out.base_) + tree.files.size() * 3 + tree.descriptors.size() +
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

}  // namespace ckpt::rebuild
