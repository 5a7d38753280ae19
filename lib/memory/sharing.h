// Memory that processes share since a fork: put in place once, in the process that forks them, so that they have it
// from their birth and the kernel copies a page when one of them writes to it.
//
// What a process holds while it forks need not be what it ends up with: a page that all its children have as it was and
// that it has written to itself since is theirs. So each process is laid out twice, where that pays: for its children,
// then for itself. What a process has from its birth is compared with what it needs, and only the difference is made.
// Which pages were one page is not known; equal pages at equal addresses of equal mappings become one.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lib/state/mappings/plan.h"
#include "lib/state/tree/held_memory.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// The block of an image that an address space has pages of at an address, if it has, and which: as `pages_to_write`
/// tells them.
struct HeldPages {
  size_t block = 0;
  uint16_t mask = 0;
};
HeldPages pages_at(const store::ImageReader& image, const HeldMemory& held, uint64_t address);

/// What this process should hold while it forks: the pages that at least two have of it and those that its children and
/// theirs make up; the content that most of them have. Nothing: no two have pages at one address.
std::optional<HeldMemory> memory_to_share(const store::ImageReader& image, size_t process);

/// Marks the mappings of `process` that it has from its birth, as Supply::kInherit: those that are wholly there, and
/// where enough is alike to be worth the comparison. `blocks`: all that it is to have of the image, by address.
Result<void> inherit(const store::ImageReader& image, const store::ProcessImage& process,
                     std::span<const size_t> blocks, const HeldMemory& held, MemoryPlan& plan);

/// Pages that it has from its birth and that its image does not have, in mappings that it inherits.
std::vector<Range> pages_to_drop(const store::ImageReader& image, const store::ProcessImage& process,
                                 std::span<const size_t> blocks, const HeldMemory& held, const MemoryPlan& plan);

/// Whether all of these pages of a block are there already, as far as that can be told without reading.
bool is_there(const store::ImageReader& image, const HeldMemory& held, size_t block, uint16_t pages);
/// Those among `pages` of a block (`data`: its data pages, packed) that differ from what is there already.
Result<uint16_t> pages_that_differ(const store::ImageReader& image, const HeldMemory& held, size_t block,
                                   uint16_t pages, ByteSpan data);

}  // namespace ckpt::restore
