#include "lib/state/files/proc_files.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

Result<void> open_proc_files(const store::TreeImage& tree, int process, bool inner, Child& child) {
  for (const store::Descriptor& descriptor : tree.descriptors) {
    const int first = descriptor.kind == store::DescriptorKind::kProcFile ? number_in(descriptor, process) : -1;
    if (first < 0 || (descriptor.object >= 0) != inner) continue;
    SyscallBatch open;
    open.add("open a file of /proc", SYS_open, child.area().put_string(descriptor.external),
             descriptor.flags & ~O_CREAT, 0);
    CKPT_TRY(child.run(open));
    const int64_t opened = open.calls()[0].result;
    SyscallBatch place;
    if ((descriptor.flags & O_PATH) == 0)
      place.add("go to the offset of a file", SYS_lseek, opened, descriptor.offset, SEEK_SET);
    bool in_place = false;
    for (const auto& slot : descriptor.fds) {
      if (slot.process != process) continue;
      in_place = in_place || slot.fd == opened;
      if (slot.fd == opened)
        place.add("set a descriptor's flag", SYS_fcntl, opened, F_SETFD, slot.close_on_exec ? FD_CLOEXEC : 0);
      else place.add("place a descriptor", SYS_dup3, opened, slot.fd, slot.close_on_exec ? O_CLOEXEC : 0);
    }
    if (!in_place) place.add("close a descriptor", SYS_close, opened);
    CKPT_TRY(child.run(place));
  }
  return {};
}

}  // namespace ckpt::restore
