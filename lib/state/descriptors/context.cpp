#include "lib/state/descriptors/context.h"

#include <fmt/format.h>

#include "lib/proc/userfault.h"

namespace ckpt::capture {

std::string Place::access() const { return fmt::format("/proc/{}/fd/{}", pid, fd); }

Result<struct stat> DescriptorContext::stat_behind(const Place& place) {
  const proc::FdInfo& info = place.info;
  const std::string key = fmt::format("{} {} {}", info.inode, info.mount_id, place.link);
  auto known = stats_.find(key);
  if (known != stats_.end()) return known->second;
  const std::string access = place.access();
  struct stat st{};
  if (::stat(access.c_str(), &st) != 0) return sys_error(access, "cannot stat");
  if (info.inode != 0) stats_.emplace(key, st);  // fdinfo tells it since 5.14
  return st;
}

Result<UniqueFd> DescriptorContext::duplicate(const Place& place) { return proc::get_remote_fd(place.pidfd, place.fd); }

Result<std::string> DescriptorContext::fdinfo(const Place& place) {
  return proc::read_small(place.pid, fmt::format("fdinfo/{}", place.fd));
}

}  // namespace ckpt::capture
