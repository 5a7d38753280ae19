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
#include "lib/store/image.h"

namespace ckpt::restore {

/// Whether the kernel has rings for whoever runs ckpt. kUnsupported.
Result<void> check_io_urings(const store::TreeImage& tree);

/// `source`: a descriptor of ckpt for each of the image's descriptions, -1: none.
using DescriptorSource = std::function<int(int)>;

/// A ring of the same size, whose counters the kernel has brought to where they were, with the memory as it was: a
/// program that was told of a request's completion and has not looked yet, finds it. Files, credentials, restrictions
/// and the eventfd are registered. `content`: what was captured. kUnsupported: this kernel lays the memory out
/// otherwise. Flags that only say when the kernel does its work (COOP_TASKRUN, DEFER_TASKRUN, SINGLE_ISSUER, IOPOLL)
/// are left out: a program does without. Not for one with a thread that polls it.
Result<UniqueFd> make_io_uring(const store::IoUring& image, ByteSpan content, const DescriptorSource& source);

/// Those with a thread that polls them, by the process whose thread that is, with its credentials. Once its other
/// descriptors have their numbers.
Result<void> make_polled_rings(const store::ImageReader& image, int process, const DescriptorSource& source,
                               Child& child);
bool has_polled_rings(const store::TreeImage& tree);

/// By the process itself, once its memory is filled: the kernel pins the pages.
void register_buffers(const store::TreeImage& tree, int process, RestorerArea& area, SyscallBatch& batch);

/// By each thread: the numbers that it enters rings by.
void register_numbers(const store::TreeImage& tree, int process, RestorerArea& area, ThreadBatches& batches);

/// By each thread, after register_numbers: how many workers it may have.
void limit_workers(const store::TreeImage& tree, int process, RestorerArea& area, ThreadBatches& batches);

/// Maps the memory of the rings where the process had it, once all its other mappings are there. `rings`: numbers of
/// descriptors in the child, parallel to TreeImage::io_urings; of those that the child has made its own.
Result<void> map_rings(const store::TreeImage& tree, int process, const std::vector<int>& rings, Child& child);

}  // namespace ckpt::restore
