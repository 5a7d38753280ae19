#include "lib/state/io_uring/restore.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "lib/state/descriptors/subject.h"
#include "lib/state/mappings/plan.h"

namespace ckpt::restore {

using state::UringLayout;
using state::UringMemory;
using store::IoUring;

namespace {

constexpr const char* kSubject = "an io_uring";
constexpr uint32_t kMostDropped = 1u << 24;

uint32_t word_at(ByteSpan content, uint32_t offset) {
  uint32_t out = 0;
  if (offset + sizeof out <= content.size()) std::memcpy(&out, content.data() + offset, sizeof out);
  return out;
}

void store_word(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

/// The program reads and writes at the offsets that the old kernel gave it.
bool is_laid_out_alike(const IoUring& image, const UringLayout& layout, ByteSpan content) {
  return image.content_size == content.size() && image.rings_size == state::queues_size(image, layout) &&
         image.content_size - image.rings_size == state::entries_size(image) &&
         word_at(content, layout.sq.ring_mask) == image.sq_entries - 1 &&
         word_at(content, layout.sq.ring_entries) == image.sq_entries &&
         word_at(content, layout.cq.ring_mask) == image.cq_entries - 1 &&
         word_at(content, layout.cq.ring_entries) == image.cq_entries;
}

/// Requests that do nothing: the kernel's counters cannot be set, only counted up.
class NoOps {
 public:
  NoOps(int fd, const IoUring& image, const UringLayout& layout, const UringMemory& memory)
      : fd_(fd), image_(image), layout_(layout), memory_(memory) {}

  /// `unread`: how many of the last completions the program has not taken. The head of the queue stops before them:
  /// the kernel sets room aside for completions to come, which theirs must not be part of.
  Result<void> run(uint32_t unread) {
    if (!image_.no_array) fill_array();
    // Requests that were dropped left no completion.
    fill_entries(IOSQE_CQE_SKIP_SUCCESS);
    for (uint32_t left = image_.submitted - image_.completed; left != 0;) {
      const uint32_t count = std::min(left, image_.sq_entries);
      CKPT_TRY(submit(count));
      left -= count;
    }
    fill_entries(0);
    const int64_t total = image_.completed, last_head = total - unread;
    for (int64_t done = 0; done < total;) {
      const int64_t head = std::min(done, last_head), room = image_.cq_entries - (done - head);
      store_word(memory_.word(layout_.cq.head), static_cast<uint32_t>(head));
      const int64_t count = std::min({total - done, room, int64_t{image_.sq_entries}});
      CKPT_TRY(submit(static_cast<uint32_t>(count)));
      done += count;
    }
    return {};
  }

  /// What no array does.
  void fill_array() {
    uint32_t* array = memory_.word(static_cast<uint32_t>(state::array_offset(image_, layout_)));
    for (uint32_t i = 0; i < image_.sq_entries; ++i) array[i] = i;
  }

 private:
  void fill_entries(uint8_t flags) {
    for (uint64_t i = 0; i < image_.sq_entries; ++i) {
      std::byte* entry = memory_.entries() + i * image_.sqe_size;
      std::memset(entry, 0, image_.sqe_size);
      auto* request = reinterpret_cast<io_uring_sqe*>(entry);
      request->opcode = IORING_OP_NOP, request->flags = flags;
    }
  }

  Result<void> submit(uint32_t count) {
    tail_ += count;
    store_word(memory_.word(layout_.sq.tail), tail_);
    while (count != 0) {
      const long taken = ::syscall(SYS_io_uring_enter, fd_, count, 0, 0, nullptr, 0);
      if (taken < 0 && errno == EINTR) continue;
      if (taken <= 0) return sys_error(taken < 0 ? errno : EIO, kSubject, "its counters cannot be raised");
      count -= static_cast<uint32_t>(taken);
    }
    return {};
  }

  const int fd_;
  const IoUring& image_;
  const UringLayout& layout_;
  const UringMemory& memory_;
  uint32_t tail_ = 0;
};

}  // namespace

Result<void> check_io_urings(const store::TreeImage& tree) {
  if (tree.io_urings.empty()) return {};
  CKPT_TRY(state::uring_layout());
  return {};
}

namespace {

/// `made`: the image's, with an array where this kernel does not know rings without one.
Result<UniqueFd> make_empty(const IoUring& image, UringLayout& layout, IoUring& made) {
  constexpr uint32_t kNoArray = 1u << 16;  // IORING_SETUP_NO_SQARRAY, 6.6
  io_uring_params params{};
  params.flags = IORING_SETUP_CQSIZE;
  if (image.sqe_size == 128) params.flags |= IORING_SETUP_SQE128;
  if (image.cqe_size == 32) params.flags |= IORING_SETUP_CQE32;
  if (image.no_array) params.flags |= kNoArray;
  params.cq_entries = image.cq_entries;
  made = image;
  auto fd = state::make_ring(params, image.sq_entries);
  if (!fd && fd.error().sys_errno == EINVAL && image.no_array) {
    made.no_array = false;
    params.flags &= ~kNoArray;
    fd = state::make_ring(params, image.sq_entries);
  }
  if (!fd) return fd;
  layout = {params.sq_off, params.cq_off};
  if (params.sq_entries != image.sq_entries || params.cq_entries != image.cq_entries)
    return fail(Code::kUnsupported, kSubject, "is made in another size by this kernel");
  return fd;
}

}  // namespace

Result<UniqueFd> make_io_uring(const IoUring& image, ByteSpan content) {
  UringLayout layout;
  IoUring made;
  CKPT_TRY_ASSIGN(UniqueFd fd, make_empty(image, layout, made));
  if (!is_laid_out_alike(image, layout, content))
    return fail(Code::kUnsupported, kSubject, "is laid out otherwise by this kernel");
  const uint32_t unread = image.completed - word_at(content, layout.cq.head);
  if (unread > image.cq_entries || image.submitted - image.completed > kMostDropped)
    return fail(Code::kCorrupt, kSubject, "the image contradicts itself: its counters do not fit its queues");
  CKPT_TRY_ASSIGN(UringMemory memory, UringMemory::map(fd.get(), made, layout));
  NoOps requests(fd.get(), made, layout, memory);
  CKPT_TRY(requests.run(unread));
  std::memcpy(memory.queues(), content.data(), image.rings_size);
  std::memcpy(memory.entries(), content.data() + image.rings_size, content.size() - image.rings_size);
  if (image.no_array && !made.no_array) requests.fill_array();
  return fd;
}

Result<void> register_files(int ring, const IoUring& image, const std::function<int(int)>& source) {
  if (image.files.empty()) return {};
  std::vector<int> fds;
  for (int file : image.files) {
    fds.push_back(file < 0 ? -1 : source(file));
    if (file >= 0 && fds.back() < 0)
      return fail(Code::kUnsupported, kSubject,
                  fmt::format("open file {} cannot be registered: it is made later", file));
  }
  if (::syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, fds.data(), fds.size()) == 0) return {};
  return sys_error(kSubject, "its files cannot be registered");
}

Result<void> register_eventfd(int ring, const IoUring& image, const std::function<int(int)>& source) {
  if (image.eventfd < 0) return {};
  const int fd = source(image.eventfd);
  if (fd < 0) return fail(Code::kCorrupt, kSubject, fmt::format("open file {} is not there to be told", image.eventfd));
  const unsigned how = image.eventfd_async ? IORING_REGISTER_EVENTFD_ASYNC : IORING_REGISTER_EVENTFD;
  if (::syscall(SYS_io_uring_register, ring, how, &fd, 1) == 0) return {};
  return sys_error(kSubject, "its eventfd cannot be registered");
}

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
      batch.add("register the buffers of an io_uring", SYS_io_uring_register, number_in(d, process),
                IORING_REGISTER_BUFFERS, list, buffers.size());
    }
  }
}

void register_numbers(const store::TreeImage& tree, int process, RestorerArea& area, ThreadBatches& batches) {
  constexpr int kRegisterRings = 20;  // IORING_REGISTER_RING_FDS
  const store::ProcessImage& image = tree.processes[static_cast<size_t>(process)];
  const int table = image.descriptors_of < 0 ? process : image.descriptors_of;
  for (const store::Descriptor& d : tree.descriptors) {
    if (d.kind != store::DescriptorKind::kIoUring) continue;
    for (const store::IoUringNumber& number : tree.io_urings[static_cast<size_t>(d.object)].numbers) {
      const int fd = number_in(d, table);
      const io_uring_rsrc_update update{number.number, 0, static_cast<uint64_t>(fd)};
      for (size_t i = 0; i < image.threads.size(); ++i) {
        if (image.threads[i].tid == number.tid && fd >= 0)
          batches[i].add("give an io_uring its number", SYS_io_uring_register, fd, kRegisterRings, area.put(update), 1);
      }
    }
  }
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
      if (std::find(views.begin(), views.end(), view) != views.end()) out.push_back({&map, rings[i]});
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
      return fail(Code::kUnsupported, kSubject,
                  fmt::format("cannot be mapped where it was ({:x}): this kernel chooses {:x}", views[i].map->start,
                              batch.calls()[first + 2 * i].result));
  }
  return child.run(dont_fork);
}

}  // namespace ckpt::restore
