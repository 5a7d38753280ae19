#include "lib/memory/fill.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <array>
#include <atomic>

#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"
#include "lib/memory/sharing.h"
#include "lib/proc/userfault.h"

namespace ckpt::restore {

namespace {

using store::MemoryMap;

/// What is read, and then put in place, at a time. Fresh memory is the dearest thing here: each worker keeps one
/// buffer, small enough to stay in its cache (64 KiB to 1 MiB make no difference of more than 3 %).
constexpr size_t kBlocksAtOnce = 4;
/// Workers stay out of each other's page tables and huge pages.
constexpr uint64_t kJobSize = 2 << 20;

/// Puts blocks into the child.
class Filler {
 public:
  Filler(const store::ImageReader& image, const Filling& filling)
      : image_(image),
        maps_(filling.process.maps),
        plan_(filling.plan),
        held_(filling.held),
        pid_(filling.pid),
        userfault_(filling.userfault),
        shift_(filling.shift) {}

  Result<FillTotals> fill(std::span<const size_t> blocks) {
    hint_ = static_cast<size_t>(
        std::partition_point(maps_.begin(), maps_.end(),
                             [&](const MemoryMap& map) { return map.end <= address_of(image_.blocks()[blocks[0]]); }) -
        maps_.begin());
    for (size_t at = 0; at < blocks.size(); at += kBlocksAtOnce)
      CKPT_TRY(fill_some(blocks.subspan(at, std::min(blocks.size() - at, kBlocksAtOnce))));
    return totals_;
  }

 private:
  /// Pages of a block.
  struct Sorts {
    uint16_t written, copied;
    uint16_t begins;  ///< the first ones of mappings: one copy does not reach over two of them
  };
  struct Copy {
    uint64_t to;
    ByteSpan from;
  };

  Result<void> fill_some(std::span<const size_t> blocks) {
    thread_local std::vector<std::byte> buffer(kBlocksAtOnce * store::kBlockSize);
    size_t used = 0;
    for (size_t i : blocks) {
      const auto& block = image_.blocks()[i];
      uint16_t written = 0, copied = 0, inherited = 0, begins = 0;
      for_each_part(maps_, block, hint_, [&](uint16_t part, size_t map) {
        const uint16_t pages = pages_to_write(block, part, maps_[map]);
        if (plan_.supply[map] == Supply::kWrite) written = static_cast<uint16_t>(written | pages);
        if (plan_.supply[map] == Supply::kCopy) copied = static_cast<uint16_t>(copied | pages);
        if (plan_.supply[map] == Supply::kInherit) inherited = static_cast<uint16_t>(inherited | pages);
        if (maps_[map].start >= address_of(block)) begins = static_cast<uint16_t>(begins | (part & -part));
      });
      if (inherited != 0 && is_there(image_, *held_, i, inherited)) {
        count(static_cast<uint64_t>(__builtin_popcount(inherited)));
        inherited = 0;
      }
      if ((written | copied | inherited) == 0) continue;
      MutableByteSpan room(buffer.data() + used, store::kBlockSize);
      if (((written | copied | inherited) & block.data_mask) != 0) {
        CKPT_TRY_ASSIGN(size_t size, image_.read_block(i, room));
        used += size;
      }
      if (inherited != 0) {
        CKPT_TRY_ASSIGN(const uint16_t differing, pages_that_differ(image_, *held_, i, inherited, room));
        count(static_cast<uint64_t>(__builtin_popcount(inherited & ~differing)));
        written = static_cast<uint16_t>(written | differing);
      }
      add_pages(block, {written, copied, begins}, room.data());
    }
    return flush();
  }

  void add_pages(const store::ImageReader::ResolvedBlock& block, const Sorts& sorts, std::byte* data) {
    static std::array<std::byte, store::kPageSize> kZeroPage{};
    for (unsigned page = 0; page < store::kBlockPages; ++page) {
      const uint64_t address = address_of(block) + page * store::kPageSize + shift_;
      const bool has_data = (block.data_mask >> page & 1) != 0;
      if ((sorts.copied >> page & 1) != 0) add_copy(address, {data, store::kPageSize}, (sorts.begins >> page & 1) != 0);
      else if ((sorts.written >> page & 1) != 0) add_write(address, has_data ? data : kZeroPage.data());
      if (has_data) data += store::kPageSize;
    }
  }

  void add_copy(uint64_t to, ByteSpan page, bool begins) {
    const bool follows = !begins && !copies_.empty() && copies_.back().to + copies_.back().from.size() == to &&
                         copies_.back().from.data() + copies_.back().from.size() == page.data();
    if (follows) copies_.back().from = {copies_.back().from.data(), copies_.back().from.size() + page.size()};
    else copies_.push_back({to, page});
    count(1);
  }

  void add_write(uint64_t address, std::byte* data) {
    bool follows = !remote_.empty() && static_cast<char*>(remote_.back().iov_base) + remote_.back().iov_len ==
                                           reinterpret_cast<char*>(address);
    follows ? void(remote_.back().iov_len += store::kPageSize)
            : remote_.push_back({reinterpret_cast<void*>(address), store::kPageSize});
    bool packed = !local_.empty() && static_cast<std::byte*>(local_.back().iov_base) + local_.back().iov_len == data;
    packed ? void(local_.back().iov_len += store::kPageSize) : local_.push_back({data, store::kPageSize});
    to_write_ += store::kPageSize;
    count(1);
  }

  void count(uint64_t pages) {
    totals_.pages += pages;
    totals_.bytes += pages * store::kPageSize;
  }

  Result<void> flush() {
    trace::Span span("fill");
    span.bytes(totals_.bytes - flushed_);
    trace::add(trace::kWritten, trace::kBytes, totals_.bytes - flushed_);
    flushed_ = totals_.bytes;
    CKPT_TRY(write());
    for (const Copy& copy : copies_) {
      proc::Placed placed = proc::copy_missing(userfault_, copy.to, copy.from);
      if (placed.obstacle != proc::Obstacle::kNone)
        return sys_error(placed.error, fmt::format("process {}", pid_),
                         fmt::format("cannot fill its memory at {:#x}", copy.to + placed.bytes));
    }
    copies_.clear();
    return {};
  }

  /// At most 16 ranges for each of a few blocks, far below the 1024 that one call takes.
  Result<void> write() {
    if (remote_.empty()) return {};
    ssize_t n = ::process_vm_writev(pid_, local_.data(), local_.size(), remote_.data(), remote_.size(), 0);
    if (n < 0) return sys_error(fmt::format("process {}", pid_), "cannot write its memory");
    if (static_cast<uint64_t>(n) != to_write_) {
      return fail(
          Code::kNoRoom, fmt::format("process {}", pid_),
          fmt::format("only {} of {} bytes of its memory at {} could be written", n, to_write_, remote_[0].iov_base));
    }
    remote_.clear();
    local_.clear();
    to_write_ = 0;
    return {};
  }

  const store::ImageReader& image_;
  const std::vector<MemoryMap>& maps_;
  const MemoryPlan& plan_;
  const HeldMemory* held_;
  int pid_, userfault_;
  uint64_t shift_;
  size_t hint_ = 0;
  std::vector<iovec> local_, remote_;
  std::vector<Copy> copies_;
  uint64_t to_write_ = 0, flushed_ = 0;
  FillTotals totals_;
};

/// Past the blocks from `first` on that lie in one piece of kJobSize.
size_t end_of_job(const store::ImageReader& image, const std::vector<size_t>& blocks, size_t first) {
  const uint64_t piece = address_of(image.blocks()[blocks[first]]) / kJobSize;
  size_t end = first + 1;
  while (end < blocks.size() && address_of(image.blocks()[blocks[end]]) / kJobSize == piece) ++end;
  return end;
}

}  // namespace

Result<Userfault> make_userfault(Child& child, bool events) {
  SyscallBatch batch;
  batch.add("make a userfaultfd", SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  if (auto made = child.run(batch); !made) {
    if (batch.calls()[0].result != -EPERM) return std::move(made).error();
    return fail(Code::kPermission, fmt::format("process {}", child.pid()),
                "cannot have a userfaultfd: that needs CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1");
  }
  const auto number = static_cast<int>(batch.calls()[0].result);
  CKPT_TRY_ASSIGN(UniqueFd pidfd, proc::open_pidfd(child.pid()));
  Userfault out;
  CKPT_TRY_ASSIGN(out.fd, proc::get_remote_fd(pidfd.get(), number));
  CKPT_TRY_ASSIGN(out.abilities, proc::begin_faults(out.fd.get(), events));
  SyscallBatch end;
  end.add("close the userfaultfd", SYS_close, number);
  CKPT_TRY(child.run(end));
  return out;
}

Result<void> watch_mappings(const store::ProcessImage& process, const MemoryPlan& plan, Supply what, int userfault) {
  for (size_t i = 0; i < process.maps.size(); ++i) {
    if (plan.supply[i] == what) CKPT_TRY(proc::watch_missing(userfault, process.maps[i].start, process.maps[i].end));
  }
  return {};
}

Result<void> unwatch_mappings(const store::ProcessImage& process, const MemoryPlan& plan, Supply what, int userfault) {
  for (size_t i = 0; i < process.maps.size(); ++i) {
    if (plan.supply[i] == what) CKPT_TRY(proc::unwatch_missing(userfault, process.maps[i].start, process.maps[i].end));
  }
  return {};
}

std::vector<size_t> blocks_to_fill(const store::ImageReader& image, const store::ProcessImage& process,
                                   const MemoryPlan& plan) {
  const auto [begin, end] = image.blocks_of(process.space);
  const auto& blocks = image.blocks();
  std::vector<size_t> out;
  size_t at = begin;
  for (size_t i = 0; i < process.maps.size(); ++i) {
    const Supply supply = plan.supply[i];
    if (supply == Supply::kNone || supply == Supply::kOnDemand || supply == Supply::kMove) continue;
    auto first_from = [&](uint64_t address) {
      auto before = [](const auto& block, uint64_t a) { return address_of(block) < a; };
      return static_cast<size_t>(std::lower_bound(blocks.begin() + static_cast<ptrdiff_t>(at),
                                                  blocks.begin() + static_cast<ptrdiff_t>(end), address, before) -
                                 blocks.begin());
    };
    const size_t first = first_from(process.maps[i].start & ~(store::kBlockSize - 1)),
                 last = first_from(process.maps[i].end);
    for (size_t block = first; block < last; ++block) out.push_back(block);
    at = std::max(at, last);
  }
  return out;
}

Result<FillTotals> fill_memory(const store::ImageReader& image, const Filling& filling, ProgressSink& progress,
                               const Cancel& cancel) {
  std::atomic<uint64_t> pages{0}, bytes{0};
  auto fill = [&](std::span<const size_t> blocks) -> Result<void> {
    CKPT_TRY(cancel.check());
    CKPT_TRY_ASSIGN(FillTotals part, Filler(image, filling).fill(blocks));
    pages += part.pages;
    bytes += part.bytes;
    progress.advance(part.bytes);
    return {};
  };
  constexpr size_t kNotWorthThreads = 64;
  const std::span<const size_t> all(filling.blocks);
  if (all.empty()) return FillTotals();
  if (all.size() <= kNotWorthThreads) {
    CKPT_TRY(fill(all));
    return FillTotals{pages, bytes};
  }
  WorkerPool pool;
  for (size_t first = 0, last = 0; first < all.size(); first = last) {
    last = end_of_job(image, filling.blocks, first);
    if (!pool.submit([&fill, some = all.subspan(first, last - first)] { return fill(some); })) break;
  }
  CKPT_TRY(pool.finish());
  return FillTotals{pages, bytes};
}

}  // namespace ckpt::restore
