#include "lib/engine/rehearse_pages.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "lib/proc/remote_memory.h"

namespace ckpt::engine {

namespace {

constexpr uint64_t kAddressMask = store::space_base(1) - 1;
using Block = store::ImageReader::ResolvedBlock;

/// One page; false where it cannot be read. What lies beyond the end of a file is zero.
bool read_page(int pid, int fd, uint64_t address, std::byte* out) {
  if (fd < 0)
    return proc::read_memory(pid, proc::RemoteAddress(address), MutableByteSpan(out, store::kPageSize)).has_value();
  std::memset(out, 0, store::kPageSize);
  return ::pread(fd, out, store::kPageSize, static_cast<off_t>(address)) >= 0;
}

/// What the kernel writes while threads are put back: the number of the processor, the time that a sleep has left.
std::vector<std::pair<uint64_t, uint64_t>> written_by_kernel(const store::TreeImage& tree,
                                                             const store::ProcessImage& owner) {
  constexpr uint64_t kLeastRseq = 32, kTimespec = 16;
  constexpr size_t kR10 = 7, kRsi = 13, kOrigRax = 15;
  const int index = static_cast<int>(&owner - tree.processes.data());
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (const store::ProcessImage& process : tree.processes) {
    if (&process != &owner && process.memory_of != index) continue;
    for (const store::Thread& thread : process.threads) {
      if (thread.rseq_address != 0)
        out.emplace_back(thread.rseq_address, thread.rseq_address + std::max<uint64_t>(thread.rseq_size, kLeastRseq));
      if (thread.restart != store::RestartKind::kSleepLeft) continue;
      const uint64_t rest = thread.regs.value[thread.regs.value[kOrigRax] == SYS_nanosleep ? kRsi : kR10];
      out.emplace_back(rest, rest + kTimespec);
    }
  }
  return out;
}

void pass_over(const std::vector<std::pair<uint64_t, uint64_t>>& ranges, uint64_t address, const std::byte* wanted,
               std::byte* found) {
  for (const auto& [start, end] : ranges) {
    const uint64_t first = std::max(start, address), last = std::min(end, address + store::kPageSize);
    if (first < last) std::memcpy(found + (first - address), wanted + (first - address), last - first);
  }
}

std::string ranges_text(std::vector<uint64_t>& pages) {
  constexpr size_t kMost = 10;
  std::sort(pages.begin(), pages.end());
  std::string out;
  size_t ranges = 0;
  for (size_t i = 0; i < pages.size();) {
    size_t end = i + 1;
    while (end < pages.size() && pages[end] == pages[end - 1] + store::kPageSize) ++end;
    if (++ranges <= kMost)
      out += fmt::format("{}{:x}-{:x}", out.empty() ? "" : ", ", pages[i], pages[end - 1] + store::kPageSize);
    i = end;
  }
  return ranges <= kMost ? out : out + fmt::format(" and {} more ranges", ranges - kMost);
}

}  // namespace

Result<void> PageComparison::process(const store::TreeImage& tree, size_t index, const std::string& name,
                                     const capture::PagePlan& populated) {
  const store::ProcessImage& image = tree.processes[index];
  auto is_anonymous = [&](uint64_t address) {
    auto map = std::upper_bound(image.maps.begin(), image.maps.end(), address,
                                [](uint64_t a, const store::MemoryMap& m) { return a < m.end; });
    return map != image.maps.end() && map->start <= address && map->kind == store::MappingKind::kAnonymous;
  };
  std::vector<ComparedBlock> pieces;
  const auto [first, last] = image_.blocks_of(image.space);
  for (size_t i = first; i < last; ++i) pieces.push_back({image_.blocks()[i].address & kAddressMask, 0, i});
  const size_t of_image = pieces.size();
  for (const auto* blocks : {&populated.snapshot, &populated.live}) {
    for (const capture::BlockPlan& block : *blocks) {
      auto known = std::lower_bound(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(of_image), block.address,
                                    [](const ComparedBlock& p, uint64_t a) { return p.address < a; });
      const bool there = known != pieces.begin() + static_cast<ptrdiff_t>(of_image) && known->address == block.address;
      const uint16_t told =
          there ? image_.blocks()[known->index].data_mask | image_.blocks()[known->index].zero_mask : 0;
      uint16_t more = 0;
      for (unsigned page = 0; page < store::kBlockPages; ++page) {
        if ((block.data_mask & ~told) >> page & 1 && is_anonymous(block.address + page * store::kPageSize))
          more |= static_cast<uint16_t>(1u << page);
      }
      if (more == 0) continue;
      if (there) known->more |= more;
      else pieces.push_back({block.address, more, SIZE_MAX});
    }
  }
  return run({image.pid, -1, 0, written_by_kernel(tree, image)}, pieces, name);
}

Result<void> PageComparison::content(int space, uint64_t size, const capture::ContentSource& source,
                                     const std::string& name) {
  if (space < 0 || size == 0 || (!source.fd && source.pid == 0)) return {};
  std::vector<ComparedBlock> pieces;
  const auto [first, last] = image_.blocks_of(space);
  for (size_t i = first; i < last; ++i) {
    const uint64_t address = image_.blocks()[i].address & kAddressMask;
    if (address < size) pieces.push_back({address, 0, i});
  }
  return run({source.pid, source.fd.get(), source.shift, {}}, pieces, name);
}

Result<void> PageComparison::run(const Memory& memory, const std::vector<ComparedBlock>& pieces,
                                 const std::string& name) {
  constexpr size_t kAtOnce = 64;  // blocks of a job: 4 MiB
  WorkerPool pool;
  for (size_t at = 0; at < pieces.size(); at += kAtOnce) {
    const bool goes_on = pool.submit([this, &memory, &pieces, at]() -> Result<void> {
      CKPT_TRY(cancel_.check());
      for (size_t i = at; i < std::min(pieces.size(), at + kAtOnce); ++i) CKPT_TRY(compare(memory, pieces[i]));
      return {};
    });
    if (!goes_on) break;
  }
  CKPT_TRY(pool.finish());
  tell(name);
  return {};
}

Result<void> PageComparison::compare(const Memory& memory, const ComparedBlock& piece) {
  struct Room {
    std::array<std::byte, store::kBlockSize> wanted;
    std::array<std::byte, store::kPageSize> found, zero{};
  };
  thread_local auto room = std::make_unique<Room>();
  Block block;
  if (piece.index != SIZE_MAX) {
    block = image_.blocks()[piece.index];
    CKPT_TRY(image_.read_block(piece.index, room->wanted));
  }
  std::vector<uint64_t> different, unreadable;
  uint64_t pages = 0;
  const std::byte* next = room->wanted.data();
  for (unsigned page = 0; page < store::kBlockPages; ++page) {
    const bool data = (block.data_mask >> page & 1) != 0;
    if (!data && ((block.zero_mask | piece.more) >> page & 1) == 0) continue;
    const std::byte* wanted = data ? next : room->zero.data();
    if (data) next += store::kPageSize;
    const uint64_t address = piece.address + page * store::kPageSize;
    ++pages;
    if (!read_page(memory.pid, memory.fd, address + static_cast<uint64_t>(memory.shift), room->found.data())) {
      unreadable.push_back(address);
      continue;
    }
    if (std::memcmp(wanted, room->found.data(), store::kPageSize) == 0) continue;
    pass_over(memory.passed_over, address, wanted, room->found.data());
    if (std::memcmp(wanted, room->found.data(), store::kPageSize) != 0) different.push_back(address);
  }
  std::lock_guard lock(mutex_);
  pages_ += pages;
  different_.insert(different_.end(), different.begin(), different.end());
  unreadable_.insert(unreadable_.end(), unreadable.begin(), unreadable.end());
  return {};
}

void PageComparison::tell(const std::string& name) {
  auto add = [&](std::vector<uint64_t>& pages, const char* what) {
    if (!pages.empty())
      differences_.push_back(fmt::format("{}: {} page{} {}: {}", name, pages.size(), pages.size() == 1 ? "" : "s", what,
                                         ranges_text(pages)));
  };
  add(different_, "with other bytes than in the image");
  add(unreadable_, "of the image not there after the restore");
  different_.clear(), unreadable_.clear();
}

}  // namespace ckpt::engine
