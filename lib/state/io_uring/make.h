// The parts of making a ring again: what is the same for those that ckpt makes and those that their process makes.
#pragma once

#include <linux/io_uring.h>

#include "lib/state/io_uring/memory.h"
#include "lib/state/io_uring/restore.h"

namespace ckpt::restore {

inline constexpr const char* kRingSubject = "an io_uring";

/// For io_uring_setup(2), but for a thread that polls.
io_uring_params params_of_ring(const store::IoUring& image);
/// kUnsupported: this kernel has made another size of it.
Result<void> check_ring_size(const store::IoUring& image, const io_uring_params& params);

/// Registers what it had, counts it up and gives it its memory. `made`: as this kernel has made it, `layout`: where.
Result<void> set_up_ring(int fd, const store::IoUring& image, const store::IoUring& made,
                         const state::UringLayout& layout, ByteSpan content, const DescriptorSource& source);

/// The open file description that it is.
const store::Descriptor& descriptor_of_ring(const store::TreeImage& tree, size_t ring);

}  // namespace ckpt::restore
