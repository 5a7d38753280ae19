// What an image says of device memory beside the chunks themselves.
#pragma once

#include "lib/memory/device/chunks.h"
#include "lib/store/image.h"

namespace ckpt::capture {

/// The allocations of one source as they were last looked at, by address; their hashes are appended to the image. Every
/// chunk of them is known. `process`: its index in the tree.
Result<store::DeviceMemory> describe_device_memory(ChunkMap& map, size_t source, int process,
                                                   store::ImageWriter& writer);

/// The hashes of an allocation's chunks. kCorrupt: the image's file has not all of them.
Result<std::vector<device::ChunkHash>> read_device_hashes(const store::ImageReader& image,
                                                          const store::DeviceAllocation& allocation);

/// What the parent image has of these allocations: for captures into an image with that parent, of a process with the
/// same memory space. Allocations of which the parent makes parts again are left out.
Result<void> expect_parent(ChunkMap& map, const store::ImageReader& parent, const store::DeviceMemory& memory);

}  // namespace ckpt::capture
