#include "lib/state/posix_queues/collect.h"

#include <sys/stat.h>
#include <sys/vfs.h>

#include "lib/state/posix_queues/capture.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

Result<bool> PosixQueueCollector::holds(const Place& place, const struct stat& st) {
  auto [known, is_new] = devices_.emplace(st.st_dev, false);
  if (is_new) {
    struct statfs fs{};
    constexpr long kMqueueMagic = 0x19800202;
    known->second = ::statfs(place.access().c_str(), &fs) == 0 && fs.f_type == kMqueueMagic;
  }
  return known->second;
}

Result<bool> PosixQueueCollector::take(const Place& place, Descriptor& d) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, DescriptorContext::duplicate(place));
  struct stat st{};
  if (::fstat(theirs.get(), &st) != 0) return sys_error(place.link, "cannot stat");
  d.kind = DescriptorKind::kPosixQueue;
  auto [known, is_new] = queues_.emplace(st.st_ino, -1);
  if (is_new) {
    auto queue = describe_posix_queue(theirs.get(), place.link, context_.frozen());
    if (!queue) return context_.block(place, queue.error().text()), false;
    known->second = static_cast<int>(context_.out.image.posix_queues.size());
    context_.out.image.posix_queues.push_back(std::move(*queue));
  }
  d.object = known->second;
  return d.object >= 0;
}

}  // namespace ckpt::capture
