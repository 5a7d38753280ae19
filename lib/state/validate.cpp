#include "lib/state/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "lib/state/aio/ring.h"
#include "lib/state/files/put_back.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/network/content.h"
#include "lib/state/seccomp/restore.h"
#include "lib/state/sockets/restore.h"

namespace ckpt::restore {

namespace {

using store::MappingKind;

constexpr uint64_t kUserEnd = 0x7ffffffff000;  // TASK_SIZE_MAX with four levels of page tables
constexpr int kMaxNumber = 1 << 22;            // PID_MAX_LIMIT
constexpr int kMaxDescriptor = 1 << 20;
constexpr uint64_t kMaxRing = 16 << 20;  // the largest has 32,768 and 65,536 entries
constexpr uint64_t kMaxAioRing = 256 << 20;
constexpr size_t kMaxQueued = 1 << 16, kMaxThreads = 1 << 20, kMaxGroups = 65536, kMaxAffinity = 8192;

Unexpected damaged(std::string what) {
  return fail(Code::kCorrupt, "", "the image contradicts itself: " + std::move(what));
}

bool is_index(int value, size_t size, bool required) {
  return value < 0 ? !required : static_cast<size_t>(value) < size;
}

Result<void> validate_signals(const std::vector<store::QueuedSignal>& queued) {
  if (queued.size() > kMaxQueued) return damaged("too many queued signals");
  for (const auto& signal : queued) {
    if (signal.signo < 1 || signal.signo > 64 || signal.siginfo.size() != 128) return damaged("a queued signal");
  }
  return {};
}

Result<void> validate_threads(const store::ProcessImage& image, std::set<int>& seen) {
  if (image.threads.empty() || image.threads.size() > kMaxThreads) return damaged("no thread, or too many");
  if (image.pid < 1 || image.threads[0].tid != image.pid) return damaged("the first thread is not the leader");
  for (const auto& thread : image.threads) {
    std::string name = fmt::format("thread {}", thread.tid);
    if (thread.tid < 1 || thread.tid > kMaxNumber || !seen.insert(thread.tid).second)
      return damaged(name + " has an impossible number or appears twice");
    if (image.zombie) continue;
    if (thread.xstate_size < 576 || thread.xstate_size > 64 * 1024)
      return damaged(name + " has a register area of an impossible size");
    if (thread.groups.size() > kMaxGroups || thread.affinity.size() > kMaxAffinity || thread.comm.size() > 64)
      return damaged(name + " has too long a list");
    CKPT_TRY(validate_signals(thread.pending));
  }
  CKPT_TRY(validate_signals(image.pending));
  for (const auto& action : image.actions) {
    if (action.signo < 1 || action.signo > 64) return damaged("a signal action");
  }
  std::set<int> timers;
  for (const auto& timer : image.posix_timers) {
    if (timer.id < 0 || !timers.insert(timer.id).second)
      return damaged("a timer has an impossible number or appears twice");
  }
  for (const auto& timer : image.interval_timers) {
    if (timer.which < 0 || timer.which > 2) return damaged("an interval timer");
  }
  for (const auto& limit : image.limits) {
    if (limit.resource < 0 || limit.resource > 15) return damaged("a resource limit");
  }
  return {};
}

/// A view of a System V segment is within the segment, which is attached as a whole.
Result<void> validate_view(const store::SharedMemory& memory, const store::MemoryMap& map) {
  if (memory.kind != store::SharedMemory::Kind::kSystemV) return {};
  const uint64_t pages = memory.size / store::kPageSize + (memory.size % store::kPageSize != 0);
  const uint64_t first = map.file_offset / store::kPageSize, count = (map.end - map.start) / store::kPageSize;
  if (map.kind == MappingKind::kSharedMemory && map.file_offset <= map.start && first <= pages &&
      count <= pages - first)
    return {};
  return damaged(fmt::format("mapping {:x}-{:x} is no part of its segment", map.start, map.end));
}

/// Of 2 MiB, 1 GiB, or what else a kernel may have.
bool is_huge_page(uint64_t size) {
  return std::has_single_bit(size) && size > store::kPageSize && size <= uint64_t{1} << 40;
}

/// Each shared memory of that kind is the content of one segment; huge pages are whole ones.
Result<void> validate_segments(const store::TreeImage& tree) {
  std::map<int, uint64_t> sizes;
  for (const auto& segment : tree.ipc.segments) {
    if (segment.size > uint64_t{1} << 46 || !sizes.emplace(segment.identity.id, segment.size).second)
      return damaged(fmt::format("shared memory segment {} is impossible or appears twice", segment.identity.id));
  }
  for (const auto& memory : tree.shared_memory) {
    if (memory.huge_page != 0 && (!is_huge_page(memory.huge_page) || memory.size % memory.huge_page != 0 ||
                                  memory.kind == store::SharedMemory::Kind::kSystemV))
      return damaged("shared memory of huge pages of an impossible size");
    if (memory.kind != store::SharedMemory::Kind::kSystemV) continue;
    auto segment = sizes.find(memory.id);
    if (segment == sizes.end() || segment->second != memory.size)
      return damaged(fmt::format("shared memory {} has no segment", memory.inode));
  }
  for (const auto& descriptor : tree.descriptors) {
    if (descriptor.shared_memory >= 0 && static_cast<size_t>(descriptor.shared_memory) < tree.shared_memory.size() &&
        tree.shared_memory[static_cast<size_t>(descriptor.shared_memory)].kind == store::SharedMemory::Kind::kSystemV)
      return damaged("a descriptor of a shared memory segment");
  }
  return {};
}

/// Huge pages are mapped as a whole.
Result<void> validate_huge_map(const store::TreeImage& tree, const store::MemoryMap& map) {
  uint64_t size = 0, offset = 0;
  if (map.kind == MappingKind::kHugePages) {
    if (!is_huge_page(map.file_offset)) return damaged("huge pages of an impossible size");
    size = map.file_offset;
  } else if (map.shared_memory >= 0) {
    const store::SharedMemory& memory = tree.shared_memory[static_cast<size_t>(map.shared_memory)];
    size = memory.huge_page, offset = map.file_offset;
    if (size != 0 && (map.kind != MappingKind::kSharedMemory || map.file_offset > memory.size ||
                      map.end - map.start > memory.size - map.file_offset))
      return damaged(fmt::format("mapping {:x}-{:x} is no part of its huge pages", map.start, map.end));
  }
  if (size == 0 || (map.start | map.end | offset) % size == 0) return {};
  return damaged(fmt::format("mapping {:x}-{:x} has a part of a huge page", map.start, map.end));
}

Result<void> validate_maps(const store::TreeImage& tree, const store::ProcessImage& image) {
  uint64_t previous_end = 0;
  for (const auto& map : image.maps) {
    std::string name = fmt::format("mapping {:x}-{:x}", map.start, map.end);
    if (map.start % store::kPageSize != 0 || map.end % store::kPageSize != 0 || map.start >= map.end ||
        map.end > kUserEnd)
      return damaged(name + " is no range of pages");
    if (map.start < previous_end) return damaged(name + " overlaps the one before it");
    previous_end = map.end;
    bool private_memfd = map.kind == MappingKind::kPrivateFile && map.shared_memory >= 0;
    bool of_file = (map.kind == MappingKind::kPrivateFile && !private_memfd) || map.kind == MappingKind::kSharedFile;
    if (!is_index(map.file, tree.files.size(), of_file)) return damaged(name + " has no file");
    if (!is_index(map.shared_memory, tree.shared_memory.size(), map.kind == MappingKind::kSharedMemory))
      return damaged(name + " has no shared memory");
    if (map.shared_memory >= 0)
      CKPT_TRY(validate_view(tree.shared_memory[static_cast<size_t>(map.shared_memory)], map));
    if (map.file_offset % store::kPageSize != 0 || map.file_offset > uint64_t{1} << 62 || (map.prot & ~7) != 0)
      return damaged(name + " has an impossible offset or protection");
    CKPT_TRY(validate_huge_map(tree, map));
    for (const auto& guard : map.guards) {
      if (guard.first < map.start || guard.second > map.end || guard.first >= guard.second ||
          (guard.first | guard.second) % store::kPageSize != 0) {
        return damaged(name + " has an impossible guard");
      }
    }
  }
  return {};
}

using Block = store::ImageReader::ResolvedBlock;
constexpr uint64_t kAddressMask = store::space_base(1) - 1;

/// The blocks of one process, the first of which is `first`. Both lists are sorted.
Result<void> validate_process_pages(const store::ProcessImage& image, std::vector<Block>::const_iterator first,
                                    std::vector<Block>::const_iterator last) {
  const auto ends_by = [](const Block& block, uint64_t address) {
    return (block.address & kAddressMask) + store::kBlockSize <= address;
  };
  auto map = image.maps.begin();
  for (auto block = first; block != last; ++block) {
    const uint64_t start = block->address & kAddressMask;
    while (map != image.maps.end() && map->end <= start) ++map;
    // Nearly all lie in the middle of a mapping, and there are as many as the process has memory.
    if (map != image.maps.end() && map->kind == MappingKind::kAnonymous && map->start <= start &&
        start + store::kBlockSize <= map->end) {
      block = std::prev(std::lower_bound(block, last, map->end, ends_by));
      continue;
    }
    auto holder = map;
    for (uint64_t page = 0; page < store::kBlockPages; ++page) {
      if (((block->data_mask | block->zero_mask) >> page & 1) == 0) continue;
      const uint64_t address = start + page * store::kPageSize;
      while (holder != image.maps.end() && holder->end <= address) ++holder;
      if (holder == image.maps.end() || holder->start > address || holder->kind == MappingKind::kVdso ||
          holder->kind == MappingKind::kSharedFile || holder->kind == MappingKind::kSharedMemory ||
          holder->kind == MappingKind::kIoUring || holder->kind == MappingKind::kAio ||
          holder->kind == MappingKind::kDroppable) {
        return damaged(fmt::format("a page at {:x} belongs to no mapping that could hold it", address));
      }
    }
  }
  return {};
}

/// What a memory space belongs to: a process, or something of so many bytes.
struct Space {
  const store::ProcessImage* process = nullptr;
  uint64_t size = 0;
};

/// By number; each belongs to one thing.
Result<std::map<int, Space>> spaces_of(const store::TreeImage& tree) {
  std::map<int, Space> out;
  auto take = [&](int number, Space space) { return number >= 0 && out.emplace(number, space).second; };
  for (const auto& process : tree.processes) {
    bool has_memory = !process.zombie && process.memory_of < 0;
    if (has_memory && !take(process.space, {&process, 0})) return damaged("two things have one memory space");
  }
  for (const auto& memory : tree.shared_memory) {
    if (!take(memory.space, {nullptr, memory.size})) return damaged("two things have one memory space");
  }
  for (const auto& file : tree.files) {
    if (file.space >= 0 && !take(file.space, {nullptr, file.size})) return damaged("two things have one memory space");
  }
  for (const auto* filesystem : filesystems_of(tree.namespaces)) {
    for (const auto& file : filesystem->files) {
      if (file.space >= 0 && !take(file.space, {nullptr, file.size}))
        return damaged("two things have one memory space");
    }
  }
  return out;
}

/// Descriptions in flight, in a socket's queue.
std::set<int> descriptions_in_flight(const store::TreeImage& tree) {
  std::set<int> out;
  for (const auto& socket : tree.sockets) {
    for (const auto& message : socket.messages) out.insert(message.rights.begin(), message.rights.end());
    // One that waits to be accepted is in its listener's queue.
    if (socket.state == store::SocketState::kPending) out.insert(socket.descriptor);
  }
  return out;
}

/// The kernel has short numbers.
bool is_sound(const store::SystemVIpc& ipc, const store::SemaphoreAdjustments& adjustments) {
  const auto& changes = adjustments.changes;
  return changes.size() == ipc.sets[static_cast<size_t>(adjustments.set)].semaphores.size() &&
         std::all_of(changes.begin(), changes.end(), [](int change) { return change >= -32768 && change <= 32767; });
}

Result<void> validate_objects(const store::TreeImage& tree) {
  if (std::string fault = check_sockets(tree.sockets); !fault.empty()) return damaged(fault);
  for (const auto& end : tree.terminal_ends) {
    if (!is_index(end.terminal, tree.terminals.size(), true)) return damaged("an end of no terminal");
  }
  for (const auto& adjustments : tree.ipc.adjustments) {
    if (!is_index(adjustments.set, tree.ipc.sets.size(), true) ||
        !is_index(adjustments.process, tree.processes.size(), true) || !is_sound(tree.ipc, adjustments))
      return damaged("adjustments of no semaphores");
  }
  return {};
}

bool is_power_of_2(uint32_t value) { return value != 0 && (value & (value - 1)) == 0; }

/// Whether the process has it open, and no other one.
bool is_in_process(const store::TreeImage& tree, size_t ring, int process) {
  bool found = false;
  for (const store::Descriptor& d : tree.descriptors) {
    if (d.kind != store::DescriptorKind::kIoUring || d.object != static_cast<int>(ring)) continue;
    for (const store::FdSlot& slot : d.fds) {
      if (slot.process != process) return false;
      found = true;
    }
  }
  return found;
}

/// What came after the first rings: no more than one of what can be there once, in order, and of this ring.
Result<void> validate_more(const store::TreeImage& tree, size_t index) {
  const store::IoUring& ring = tree.io_urings[index];
  if ((ring.flags & ~store::kUringFlags) != 0 || ring.poller.size() > 1 || ring.restrictions.size() > 1 ||
      (!ring.file_tags.empty() && ring.file_tags.size() != ring.files.size()) ||
      (!ring.buffer_tags.empty() && ring.buffer_tags.size() != ring.buffers.size()))
    return damaged("an io_uring that was set up in an impossible way");
  for (size_t i = 1; i < ring.personalities.size(); ++i) {
    if (ring.personalities[i - 1].number >= ring.personalities[i].number)
      return damaged("an io_uring with credentials out of order");
  }
  if (ring.poller.empty()) return {};
  const int other = ring.poller[0].ring;
  if (other >= static_cast<int>(index)) return damaged("an io_uring that is polled by the thread of a later one");
  const store::IoUring* owner = other < 0 ? nullptr : &tree.io_urings[static_cast<size_t>(other)];
  if (!is_in_process(tree, index, ring.process) ||
      (owner != nullptr && (owner->poller.empty() || owner->process != ring.process)))
    return damaged("an io_uring that is polled by a thread of another process");
  return {};
}

/// Sizes are a kernel's own, every view is a mapping, and every mapping of a ring a view.
Result<void> validate_rings(const store::TreeImage& tree) {
  std::set<std::pair<int, uint64_t>> views;
  for (size_t i = 0; i < tree.io_urings.size(); ++i) {
    const store::IoUring& ring = tree.io_urings[i];
    CKPT_TRY(validate_more(tree, i));
    if (!is_power_of_2(ring.sq_entries) || !is_power_of_2(ring.cq_entries) || ring.rings_size > ring.content_size ||
        ring.content_size > kMaxRing || (ring.sqe_size != 64 && ring.sqe_size != 128) ||
        (ring.cqe_size != 16 && ring.cqe_size != 32))
      return damaged("an io_uring of an impossible size");
    if (!is_index(ring.eventfd, tree.descriptors.size(), false) ||
        (ring.eventfd >= 0 &&
         tree.descriptors[static_cast<size_t>(ring.eventfd)].kind != store::DescriptorKind::kEventfd))
      return damaged("an io_uring that tells its completions to what is no eventfd");
    for (const store::IoUringView& view : ring.views) {
      if (!views.emplace(view.process, view.start).second) return damaged("a mapping of two io_urings");
    }
  }
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    for (const store::MemoryMap& map : tree.processes[i].maps) {
      if (map.kind == MappingKind::kIoUring && views.erase({static_cast<int>(i), map.start}) == 0)
        return damaged(fmt::format("mapping {:x}-{:x} belongs to no io_uring", map.start, map.end));
    }
  }
  return views.empty() ? Result<void>() : damaged("an io_uring is mapped where no mapping is");
}

/// Every context has a ring of its size, and every ring is of one context of its process.
Result<void> validate_aio(const store::TreeImage& tree) {
  std::map<std::pair<int, uint64_t>, const store::MemoryMap*> rings;
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    for (const store::MemoryMap& map : tree.processes[i].maps) {
      if (map.kind == MappingKind::kAio) rings.emplace(std::pair(static_cast<int>(i), map.start), &map);
    }
  }
  for (const store::AioContext& context : tree.aio_contexts) {
    const auto ring = rings.find({context.process, context.start});
    if (ring == rings.end())
      return damaged(fmt::format("the AIO context at {:x} has no ring of its own", context.start));
    const uint64_t size = ring->second->end - ring->second->start;
    if (size != context.content_size || size > kMaxAioRing || context.events != state::aio_events_in(size) ||
        context.requests == 0 || context.requests > context.events)
      return damaged(fmt::format("the AIO context at {:x} is of an impossible size", context.start));
    rings.erase(ring);
  }
  if (rings.empty()) return {};
  return damaged(fmt::format("mapping {:x}-{:x} belongs to no AIO context", rings.begin()->second->start,
                             rings.begin()->second->end));
}

Result<void> validate_descriptors(const store::TreeImage& tree) {
  CKPT_TRY(validate_objects(tree));
  const std::set<int> in_flight = descriptions_in_flight(tree);
  std::set<std::pair<int, int>> seen;
  for (const auto& descriptor : tree.descriptors) {
    for (const auto& slot : descriptor.fds) {
      const auto& process = tree.processes[static_cast<size_t>(slot.process)];
      if (slot.fd < 0 || slot.fd > kMaxDescriptor || process.descriptors_of >= 0 || process.zombie ||
          !seen.insert({slot.process, slot.fd}).second)
        return damaged(fmt::format("descriptor {} is impossible or appears twice", slot.fd));
    }
    const int index = static_cast<int>(&descriptor - tree.descriptors.data());
    if (descriptor.fds.empty() && in_flight.count(index) == 0) return damaged("an open file without a number");
    const unsigned refers = store::facts_of(descriptor.kind).refers;
    using Facts = store::DescriptorKindFacts;
    if (((refers & Facts::kToObject) != 0 && descriptor.object < 0) ||
        !is_index(descriptor.file, tree.files.size(), (refers & Facts::kToFile) != 0) ||
        !is_index(descriptor.pipe, tree.pipes.size(), (refers & Facts::kToPipe) != 0) ||
        !is_index(descriptor.shared_memory, tree.shared_memory.size(), (refers & Facts::kToSharedMemory) != 0)) {
      return damaged(fmt::format("open file {} refers to nothing", index));
    }
  }
  for (const auto& descriptor : tree.descriptors) {
    for (const auto& entry : descriptor.epoll.entries) {
      if (entry.descriptor < 0 && seen.count({entry.process, entry.target_fd}) == 0)
        return damaged(fmt::format("an epoll set watches descriptor {}, which is not open", entry.target_fd));
    }
  }
  CKPT_TRY(validate_rings(tree));
  CKPT_TRY(validate_aio(tree));
  for (const auto& pipe : tree.pipes) {
    if (pipe.capacity > (1u << 30) || pipe.content_size > pipe.capacity)
      return damaged("a pipe holds more than it can");
  }
  return {};
}

/// Every process but the first has its parent above it, and what it shares belongs to one that can share it.
Result<void> validate_relations(const store::TreeImage& tree) {
  std::set<int> above;
  for (const auto& process : tree.processes) {
    if (!above.empty() && above.count(process.parent_pid) == 0)
      return damaged(fmt::format("process {} comes before its parent", process.pid));
    if (!process.zombie) above.insert(process.pid);
    for (int owner : {process.memory_of, process.descriptors_of, process.fs_of, process.sighand_of}) {
      if (owner >= 0 && tree.processes[static_cast<size_t>(owner)].zombie)
        return damaged("a process shares something with a zombie");
    }
    if (process.zombie && (process.exit_status & ~0xffff) != 0) return damaged("a zombie has an impossible status");
  }
  if (tree.root().zombie) return damaged("its first process has ended");
  return {};
}

}  // namespace

Result<void> validate(const store::TreeImage& tree) {
  std::set<int> numbers;
  if (tree.processes.empty()) return damaged("no process");
  CKPT_TRY(validate_relations(tree));
  CKPT_TRY(state::validate_mounts(tree.namespaces.mounts));
  CKPT_TRY(state::validate_network(tree.namespaces.network));
  CKPT_TRY(state::validate_ipc_limits(tree.namespaces.ipc_limits));
  CKPT_TRY(state::validate_user_namespace(tree.namespaces));
  CKPT_TRY(state::validate_further(tree));
  for (const auto& process : tree.processes) {
    CKPT_TRY(validate_threads(process, numbers));
    CKPT_TRY(check_seccomp(process.seccomp, process.threads.size()));
    CKPT_TRY(validate_maps(tree, process));
    for (int file : {process.exe, process.cwd, process.root}) {
      if (!is_index(file, tree.files.size(), file == process.exe && !process.zombie))
        return damaged("the executable or a folder refers to nothing");
    }
  }
  CKPT_TRY(validate_segments(tree));
  CKPT_TRY(spaces_of(tree));
  CKPT_TRY(validate_contents(tree));
  return validate_descriptors(tree);
}

Result<void> validate_pages(const store::TreeImage& tree, const std::vector<Block>& blocks) {
  CKPT_TRY_ASSIGN(const auto spaces, spaces_of(tree));
  for (auto first = blocks.begin(); first != blocks.end();) {
    const uint64_t number = first->address >> store::kSpaceShift;
    const auto is_of = [](uint64_t n, const Block& block) { return n < block.address >> store::kSpaceShift; };
    const auto last = std::upper_bound(first, blocks.end(), number, is_of);
    // A chain keeps the pages of what has ended since an older image: nothing refers to them.
    const auto space = spaces.find(static_cast<int>(number));
    if (space != spaces.end() && space->second.process != nullptr)
      CKPT_TRY(validate_process_pages(*space->second.process, first, last));
    first = last;
  }
  return {};
}

}  // namespace ckpt::restore
