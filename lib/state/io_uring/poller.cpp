// Rings with a thread of the kernel that polls them.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "lib/proc/userfault.h"
#include "lib/state/credentials/restore.h"
#include "lib/state/descriptors/subject.h"
#include "lib/state/io_uring/make.h"

namespace ckpt::restore {

using store::Descriptor;
using store::IoUring;

bool has_polled_rings(const store::TreeImage& tree) {
  return std::any_of(tree.io_urings.begin(), tree.io_urings.end(), [](const auto& r) { return !r.poller.empty(); });
}

namespace {

/// Under whatever number the child has free.
Result<int> make_in_child(const store::TreeImage& tree, int process, const IoUring& image, Child& child,
                          io_uring_params& params) {
  const store::IoUringPoller& poller = image.poller[0];
  params = params_of_ring(image);
  params.flags |= IORING_SETUP_SQPOLL;
  params.sq_thread_idle = poller.idle_ms;
  if (poller.processor >= 0)
    params.flags |= IORING_SETUP_SQ_AFF, params.sq_thread_cpu = static_cast<uint32_t>(poller.processor);
  if (poller.ring >= 0) {
    params.flags |= IORING_SETUP_ATTACH_WQ;
    const Descriptor& owner = descriptor_of_ring(tree, static_cast<size_t>(poller.ring));
    params.wq_fd = static_cast<uint32_t>(number_in(owner, process));
  }
  std::byte* const place = child.area().allocate(sizeof params);
  if (place == nullptr) return fail(Code::kNoRoom, kRingSubject, "its description is too large to rebuild");
  std::memcpy(place, &params, sizeof params);
  SyscallBatch batch;
  size_t call = 0;
  const store::Thread& leader = tree.processes[static_cast<size_t>(process)].threads[0];
  CKPT_TRY(add_with_credentials(leader, child.area(), batch, [&] {
    call = batch.size();
    batch.add("make an io_uring with a thread that polls it", SYS_io_uring_setup, image.sq_entries,
              reinterpret_cast<uint64_t>(place));
  }));
  CKPT_TRY(child.run(batch));
  std::memcpy(&params, place, sizeof params);
  return static_cast<int>(batch.calls()[call].result);
}

Result<void> place_ring(const Descriptor& descriptor, int process, int number, Child& child) {
  SyscallBatch batch;
  bool stays = false;
  for (const store::FdSlot& slot : descriptor.fds) {
    if (slot.process != process) continue;
    stays = stays || slot.fd == number;
    if (slot.fd != number)
      batch.add("place a descriptor", SYS_dup3, number, slot.fd, slot.close_on_exec ? O_CLOEXEC : 0);
    else batch.add("set the flags of a descriptor", SYS_fcntl, number, F_SETFD, slot.close_on_exec ? FD_CLOEXEC : 0);
  }
  if (!stays) batch.add("close a descriptor", SYS_close, number);
  return child.run(batch);
}

Result<void> make_polled_ring(const store::ImageReader& reader, int process, size_t index,
                              const DescriptorSource& source, Child& child) {
  const store::TreeImage& tree = reader.manifest().tree;
  const IoUring& image = tree.io_urings[index];
  const Descriptor& descriptor = descriptor_of_ring(tree, index);
  CKPT_TRY_ASSIGN(const std::vector<std::byte> content, reader.read_pipe(image.content_offset, image.content_size));
  io_uring_params params{};
  CKPT_TRY_ASSIGN(const int number, make_in_child(tree, process, image, child, params));
  CKPT_TRY_ASSIGN(const UniqueFd pidfd, proc::open_pidfd(child.pid()));
  CKPT_TRY_ASSIGN(const UniqueFd fd, proc::get_remote_fd(pidfd.get(), number));
  CKPT_TRY(check_ring_size(image, params));
  CKPT_TRY(set_up_ring(fd.get(), image, image, {params.sq_off, params.cq_off}, content, source));
  constexpr int kSettable = O_APPEND | O_NONBLOCK;
  if (::fcntl(fd.get(), F_SETFL, descriptor.flags & kSettable) != 0)
    return sys_error(kRingSubject, "cannot set its flags");
  return place_ring(descriptor, process, number, child);
}

}  // namespace

Result<void> make_polled_rings(const store::ImageReader& image, int process, const DescriptorSource& source,
                               Child& child) {
  const store::TreeImage& tree = image.manifest().tree;
  for (size_t i = 0; i < tree.io_urings.size(); ++i) {
    if (tree.io_urings[i].poller.empty() || tree.io_urings[i].process != process) continue;
    auto made = make_polled_ring(image, process, i, source, child);
    if (made) continue;
    Error error = std::move(made).error();
    error.subject = subject_of(descriptor_of_ring(tree, i)) + ", " + error.subject;
    return error;
  }
  return {};
}

}  // namespace ckpt::restore
