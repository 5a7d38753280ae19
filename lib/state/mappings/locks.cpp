#include "lib/state/mappings/locks.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include "lib/proc/procfs.h"
#include "lib/store/image.h"

namespace ckpt::capture {

namespace {

constexpr uint64_t kCold = 20;  // MADV_COLD, Linux 5.4: refused for locked memory, and changes nothing but its age

}  // namespace

FutureLockQuestion::FutureLockQuestion(proc::CallList& calls, const proc::ParasiteArea& area)
    : area_(raw(area.start())) {
  cold_ = calls.add("ask whether new memory is locked", SYS_madvise, {area_, store::kPageSize, kCold});
}

Result<void> FutureLockQuestion::take(const proc::CallList& calls, store::ProcessImage& image) const {
  if (calls.result(cold_) == 0) return {};
  return proc::each_mapping(image.pid, true, [&](proc::Vma& vma) {
    if (area_ < vma.start || area_ >= vma.end || !vma.has_flag("lo")) return;
    image.future_locks = MCL_FUTURE | (vma.has_flag("lf") ? MCL_ONFAULT : 0);
  });
}

}  // namespace ckpt::capture
