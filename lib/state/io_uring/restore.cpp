#include "lib/state/io_uring/restore.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <span>

#include "lib/state/descriptors/subject.h"
#include "lib/state/io_uring/make.h"
#include "lib/state/mappings/plan.h"

namespace ckpt::restore {

using store::IoUring;

void register_buffers(const store::TreeImage& tree, int process, RestorerArea& area, SyscallBatch& batch) {
  for (size_t i = 0; i < tree.io_urings.size(); ++i) {
    const IoUring& ring = tree.io_urings[i];
    if (ring.process != process || ring.buffers.empty()) continue;
    std::vector<iovec> buffers;
    for (const store::IoUringBuffer& b : ring.buffers)
      buffers.push_back({reinterpret_cast<void*>(b.address), static_cast<size_t>(b.length)});
    const uint64_t list = area.put_bytes(std::as_bytes(std::span(buffers)));
    for (const store::Descriptor& d : tree.descriptors) {
      if (d.kind != store::DescriptorKind::kIoUring || d.object != static_cast<int>(i)) continue;
      const int fd = number_in(d, process);
      if (ring.buffer_tags.empty()) {
        batch.add("register the buffers of an io_uring", SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS, list,
                  buffers.size());
        continue;
      }
      constexpr unsigned kWithTags = 15;  // IORING_REGISTER_BUFFERS2
      io_uring_rsrc_register all{};
      all.nr = static_cast<uint32_t>(buffers.size()), all.data = list;
      all.tags = area.put_bytes(std::as_bytes(std::span(ring.buffer_tags)));
      batch.add("register the buffers of an io_uring", SYS_io_uring_register, fd, kWithTags, area.put(all),
                sizeof all);
    }
  }
}

namespace {

/// Calls `each` with a ring of the tree and its descriptor in the process.
template <class Each>
void for_each_ring(const store::TreeImage& tree, int process, Each each) {
  const store::ProcessImage& image = tree.processes[static_cast<size_t>(process)];
  const int table = image.descriptors_of < 0 ? process : image.descriptors_of;
  for (const store::Descriptor& d : tree.descriptors) {
    if (d.kind == store::DescriptorKind::kIoUring)
      each(tree.io_urings[static_cast<size_t>(d.object)], number_in(d, table));
  }
}

/// The batch of the thread; nullptr: the process has none with that number.
SyscallBatch* batch_of(const store::ProcessImage& image, int tid, ThreadBatches& batches) {
  for (size_t i = 0; i < image.threads.size(); ++i) {
    if (image.threads[i].tid == tid) return &batches[i];
  }
  return nullptr;
}

constexpr int kRegisterRings = 20, kUnregisterRings = 21;  // IORING_REGISTER_RING_FDS, 5.18

}  // namespace

void register_numbers(const store::TreeImage& tree, int process, RestorerArea& area, ThreadBatches& batches) {
  for_each_ring(tree, process, [&](const IoUring& ring, int fd) {
    for (const store::IoUringNumber& number : ring.numbers) {
      SyscallBatch* batch = batch_of(tree.processes[static_cast<size_t>(process)], number.tid, batches);
      const io_uring_rsrc_update update{number.number, 0, static_cast<uint64_t>(fd)};
      if (batch != nullptr && fd >= 0)
        batch->add("give an io_uring its number", SYS_io_uring_register, fd, kRegisterRings, area.put(update), 1);
    }
  });
}

namespace {

/// The highest number that the thread has no ring by; 0, which the kernel refuses, where it has all of them.
uint32_t spare_number(const store::TreeImage& tree, int tid) {
  constexpr uint32_t kMostNumbers = 16;  // IO_RINGFD_REG_MAX
  std::array<bool, kMostNumbers> taken{};
  for (const IoUring& ring : tree.io_urings) {
    for (const store::IoUringNumber& number : ring.numbers)
      if (number.tid == tid && number.number < kMostNumbers) taken[number.number] = true;
  }
  const auto spare = std::find(taken.rbegin(), taken.rend(), false);
  return static_cast<uint32_t>(spare == taken.rend() ? 0 : taken.rend() - spare - 1);
}

}  // namespace

/// A thread that has not used a ring yet has nothing to limit. To be given a number for one makes it a user. Those of a
/// ring with a polling thread are not captured.
void limit_workers(const store::TreeImage& tree, int process, RestorerArea& area, ThreadBatches& batches) {
  constexpr int kMostWorkers = 19;  // IORING_REGISTER_IOWQ_MAX_WORKERS, 5.15
  for_each_ring(tree, process, [&](const IoUring& ring, int fd) {
    for (const store::IoUringWorkers& workers : ring.workers) {
      SyscallBatch* batch = batch_of(tree.processes[static_cast<size_t>(process)], workers.tid, batches);
      if (batch == nullptr || fd < 0 || !ring.poller.empty()) continue;
      auto is_its = [&](const store::IoUringNumber& number) { return number.tid == workers.tid; };
      const bool is_user = std::any_of(ring.numbers.begin(), ring.numbers.end(), is_its);
      const uint32_t spare = spare_number(tree, workers.tid);
      const uint64_t number = area.put(io_uring_rsrc_update{spare, 0, static_cast<uint64_t>(fd)});
      const uint64_t most = area.put(std::array<uint32_t, 2>{workers.bounded, workers.unbounded});
      if (!is_user) batch->add("use an io_uring", SYS_io_uring_register, fd, kRegisterRings, number, 1);
      batch->add("limit the workers of an io_uring", SYS_io_uring_register, fd, kMostWorkers, most, 2);
      const uint64_t given_up = area.put(io_uring_rsrc_update{spare, 0, 0});
      if (!is_user) batch->add("give up a number", SYS_io_uring_register, fd, kUnregisterRings, given_up, 1);
    }
  });
}

namespace {

struct View {
  const store::MemoryMap* map;
  int ring;  ///< number of its descriptor in the child
};

std::vector<View> views_of(const store::TreeImage& tree, int process, const std::vector<int>& rings) {
  std::vector<View> out;
  for (const store::MemoryMap& map : tree.processes[static_cast<size_t>(process)].maps) {
    if (map.kind != store::MappingKind::kIoUring) continue;
    const store::IoUringView view{process, map.start};
    for (size_t i = 0; i < tree.io_urings.size(); ++i) {
      const auto& views = tree.io_urings[i].views;
      if (std::find(views.begin(), views.end(), view) == views.end()) continue;
      const bool is_own = !tree.io_urings[i].poller.empty();
      out.push_back({&map, is_own ? number_in(descriptor_of_ring(tree, i), tree.io_urings[i].process) : rings[i]});
    }
  }
  return out;
}

/// Where nothing is mapped, the views apart: a small gap beside the place of a view would make that larger.
std::vector<Range> gaps_between(std::vector<Range> taken, const std::vector<View>& views) {
  constexpr uint64_t kFirst = 0x10000, kEnd = 0x7ffffffff000;  // vm.mmap_min_addr as distributions have it
  for (const View& view : views) taken.emplace_back(view.map->start, view.map->end);
  std::sort(taken.begin(), taken.end());
  taken.emplace_back(kEnd, kEnd);
  std::vector<Range> out;
  uint64_t at = kFirst;
  for (const Range& range : taken) {
    if (range.first > at) out.emplace_back(at, range.first);
    at = std::max(at, range.second);
  }
  for (const View& view : views) out.emplace_back(view.map->start, view.map->end);
  return out;
}

}  // namespace

/// Since 6.4 the kernel refuses an address for this memory, also to mremap: it chooses one itself. So everywhere else
/// is filled for the moment.
Result<void> map_rings(const store::TreeImage& tree, int process, const std::vector<int>& rings, Child& child) {
  const std::vector<View> views = views_of(tree, process, rings);
  if (views.empty()) return {};
  std::vector<Range> taken = {{child.area().address(), child.area().address() + RestorerArea::kSize}};
  for (const store::MemoryMap& map : tree.processes[static_cast<size_t>(process)].maps) {
    if (map.kind != store::MappingKind::kIoUring) taken.emplace_back(map.start, map.end);
  }
  const std::vector<Range> gaps = gaps_between(std::move(taken), views);
  constexpr int kAbove4G = 0x80;  // MAP_ABOVE4G, 6.6: not in the first pages, which cannot be filled
  SyscallBatch batch;
  constexpr int kFiller = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  for (const Range& gap : gaps)
    batch.add("fill the address space", SYS_mmap, gap.first, gap.second - gap.first, PROT_NONE,
              kFiller | MAP_FIXED_NOREPLACE, -1, 0);
  // From here the vdso has been moved away.
  batch.add("fill the address space", SYS_mmap, child.area().aside(), RestorerArea::kAsideSize, PROT_NONE,
            kFiller | MAP_FIXED, -1, 0);
  const size_t first = batch.size() + 1;
  for (const View& view : views) {
    const uint64_t size = view.map->end - view.map->start;
    batch.add("leave room for an io_uring", SYS_munmap, view.map->start, size);
    batch.add("map an io_uring", SYS_mmap, 0, size, view.map->prot, MAP_SHARED | MAP_POPULATE | kAbove4G, view.ring,
              view.map->file_offset);
  }
  for (const Range& gap : gaps) {
    auto begins_here = [&](const View& view) { return view.map->start == gap.first; };
    if (std::none_of(views.begin(), views.end(), begins_here))
      batch.add("empty the address space", SYS_munmap, gap.first, gap.second - gap.first);
  }
  CKPT_TRY(child.run(batch));
  SyscallBatch dont_fork;
  for (size_t i = 0; i < views.size(); ++i) {
    const store::MemoryMap& map = *views[i].map;
    if (has_flag(map, "dc"))
      dont_fork.add("set a property of memory", SYS_madvise, map.start, map.end - map.start, MADV_DONTFORK);
    if (batch.calls()[first + 2 * i].result != static_cast<int64_t>(views[i].map->start))
      return fail(Code::kUnsupported, kRingSubject,
                  fmt::format("cannot be mapped where it was ({:x}): this kernel chooses {:x}", views[i].map->start,
                              batch.calls()[first + 2 * i].result));
  }
  return child.run(dont_fork);
}

}  // namespace ckpt::restore
