#include "lib/rebuild/validate.h"

#include <fmt/format.h>

#include <set>

namespace ckpt::rebuild {

namespace {

using store::DescriptorKind;
using store::MappingKind;

constexpr uint64_t kUserEnd = 0x7ffffffff000;  // TASK_SIZE_MAX with four levels of page tables
constexpr int kMaxNumber = 1 << 22;            // PID_MAX_LIMIT
constexpr int kMaxDescriptor = 1 << 20;
constexpr size_t kMaxQueued = 1 << 16, kMaxThreads = 1 << 20, kMaxGroups = 65536, kMaxAffinity = 8192;

Unexpected damaged(std::string what) {
  return fail(Code::kAnswerNo, "", "the image contradicts itself: " + std::move(what));
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

Result<void> validate_threads(const store::ProcessImage& image) {
  if (image.threads.empty() || image.threads.size() > kMaxThreads) return damaged("no thread, or too many");
  if (image.pid < 1 || image.threads[0].tid != image.pid) return damaged("the first thread is not the leader");
  std::set<int> seen;
  for (const auto& thread : image.threads) {
    std::string name = fmt::format("thread {}", thread.tid);
    if (thread.tid < 1 || thread.tid > kMaxNumber || !seen.insert(thread.tid).second)
      return damaged(name + " has an impossible number or appears twice");
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

Result<void> validate_maps(const store::ProcessImage& image) {
  uint64_t previous_end = 0;
  for (const auto& map : image.maps) {
    std::string name = fmt::format("mapping {:x}-{:x}", map.start, map.end);
    if (map.start % store::kPageSize != 0 || map.end % store::kPageSize != 0 || map.start >= map.end ||
        map.end > kUserEnd)
      return damaged(name + " is no range of pages");
    if (map.start < previous_end) return damaged(name + " overlaps the one before it");
    previous_end = map.end;
    bool of_file = map.kind == MappingKind::kPrivateFile || map.kind == MappingKind::kSharedFile;
    if (!is_index(map.file, image.files.size(), of_file)) return damaged(name + " has no file");
    if (map.file_offset % store::kPageSize != 0 || map.file_offset > uint64_t{1} << 62 || (map.prot & ~7) != 0)
      return damaged(name + " has an impossible offset or protection");
    for (const auto& guard : map.guards) {
      if (guard.first < map.start || guard.second > map.end || guard.first >= guard.second ||
          (guard.first | guard.second) % store::kPageSize != 0) {
        return damaged(name + " has an impossible guard");
      }
    }
  }
  return {};
}

Result<void> validate_blocks(const store::ProcessImage& image,
                             const std::vector<store::ImageReader::ResolvedBlock>& blocks) {
  size_t next = 0;
  for (const auto& block : blocks) {
    for (uint64_t page = 0; page < store::kBlockPages; ++page) {
      if (((block.data_mask | block.zero_mask) >> page & 1) == 0) continue;
      uint64_t address = block.address + page * store::kPageSize;
      while (next < image.maps.size() && image.maps[next].end <= address) ++next;
      if (next == image.maps.size() || image.maps[next].start > address ||
          image.maps[next].kind == MappingKind::kVdso || image.maps[next].kind == MappingKind::kSharedFile) {
        return damaged(fmt::format("a page at {:x} belongs to no mapping that could hold it", address));
      }
    }
  }
  return {};
}

Result<void> validate_descriptors(const store::ProcessImage& image) {
  std::set<int> seen;
  for (const auto& descriptor : image.descriptors) {
    if (descriptor.fds.empty()) return damaged("an open file without a number");
    for (const auto& fd : descriptor.fds) {
      if (fd.first < 0 || fd.first > kMaxDescriptor || !seen.insert(fd.first).second)
        return damaged(fmt::format("descriptor {} is impossible or appears twice", fd.first));
    }
    bool of_file = descriptor.kind == DescriptorKind::kFile || descriptor.kind == DescriptorKind::kDevice;
    if (!is_index(descriptor.file, image.files.size(), of_file) ||
        !is_index(descriptor.pipe, image.pipes.size(), descriptor.kind == DescriptorKind::kPipe)) {
      return damaged(fmt::format("descriptor {} refers to nothing", descriptor.fds[0].first));
    }
  }
  for (const auto& descriptor : image.descriptors) {
    for (const auto& entry : descriptor.epoll) {
      if (seen.count(entry.target_fd) == 0)
        return damaged(fmt::format("an epoll set watches descriptor {}, which is not open", entry.target_fd));
    }
  }
  for (const auto& pipe : image.pipes) {
    if (pipe.capacity > (1u << 30) || pipe.content_size > pipe.capacity)
      return damaged("a pipe holds more than it can");
  }
  return {};
}

}  // namespace

Result<void> validate(const store::ProcessImage& image, const std::vector<store::ImageReader::ResolvedBlock>& blocks) {
  CKPT_TRY(validate_threads(image));
  CKPT_TRY(validate_maps(image));
  CKPT_TRY(validate_blocks(image, blocks));
  CKPT_TRY(validate_descriptors(image));
  for (int file : {image.exe, image.cwd, image.root}) {
    if (!is_index(file, image.files.size(), file == image.exe))
      return damaged("the executable or a folder refers to nothing");
  }
  return {};
}

}  // namespace ckpt::rebuild
