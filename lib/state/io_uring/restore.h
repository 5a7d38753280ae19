// io_uring instances made again.
#pragma once

#include <functional>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/io_uring/memory.h"
#include "lib/state/threads/restore.h"
#include "lib/state/tree/child.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Whether the kernel has rings for whoever runs ckpt. kUnsupported.
Result<void> check_io_urings(const store::TreeImage& tree);

/// A ring of the same size, whose counters the kernel has brought to where they were, with the memory as it was: a
/// program that was told of a request's completion and has not looked yet, finds it. `content`: what was captured.
/// kUnsupported: this kernel lays the memory out otherwise. Flags that only say when the kernel does its work
/// (COOP_TASKRUN, DEFER_TASKRUN, SINGLE_ISSUER) are left out: nothing tells them, and a program does without.
Result<UniqueFd> make_io_uring(const store::IoUring& image, ByteSpan content);

/// `source`: a descriptor of ckpt for each of the image's, -1: none.
Result<void> register_files(int ring, const store::IoUring& image, const std::function<int(int)>& source);

/// As `register_files`: once it has been used for the last time, for each completion is told.
Result<void> register_eventfd(int ring, const store::IoUring& image, const std::function<int(int)>& source);

/// By the process itself, once its memory is filled: the kernel pins the pages.
void register_buffers(const store::TreeImage& tree, int process, RestorerArea& area, SyscallBatch& batch);

/// By each thread: the numbers that it enters rings by.
void register_numbers(const store::TreeImage& tree, int process, RestorerArea& area, ThreadBatches& batches);

/// Maps the memory of the rings where the process had it, once all its other mappings are there. `rings`: numbers of
/// descriptors in the child, parallel to TreeImage::io_urings.
Result<void> map_rings(const store::TreeImage& tree, int process, const std::vector<int>& rings, Child& child);

}  // namespace ckpt::restore
