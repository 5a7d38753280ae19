#include "lib/capture/copy.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>

#include <unistd.h>

#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"
#include "lib/proc/remote_memory.h"

namespace ckpt::capture {

namespace {

using store::kBlockSize;
using store::kPageSize;

constexpr size_t kBatchBlocks = 16;  ///< 1 MiB: amortises the call, stays in the second-level cache

size_t data_size(const BlockPlan& block) { return static_cast<size_t>(std::popcount(block.data_mask)) * kPageSize; }

/// The block's runs of data pages as ranges of the source; neighbours across blocks are joined.
void append_ranges(const BlockPlan& block, int64_t shift, std::vector<iovec>& out) {
  for (unsigned i = 0; i < store::kBlockPages;) {
    if ((block.data_mask >> i & 1) == 0) {
      ++i;
      continue;
    }
    unsigned first = i;
    while (i < store::kBlockPages && (block.data_mask >> i & 1) != 0) ++i;
    uint64_t start = block.address + static_cast<uint64_t>(shift) + first * kPageSize, size = (i - first) * kPageSize;
    if (!out.empty() && reinterpret_cast<uint64_t>(out.back().iov_base) + out.back().iov_len == start) {
      out.back().iov_len += size;
    } else {
      out.push_back({reinterpret_cast<void*>(start), size});
    }
  }
}

/// Up to kBatchBlocks blocks of one part.
struct Batch {
  const Part* part;
  std::span<const BlockPlan> blocks;

  size_t bytes() const {
    size_t out = 0;
    for (const BlockPlan& block : blocks) out += data_size(block);
    return out;
  }
};

/// What lies behind a file's end reads as zero, as it does in a mapping.
Result<void> read_file_ranges(int fd, const std::vector<iovec>& ranges, MutableByteSpan buffer) {
  for (const iovec& range : ranges) {
    MutableByteSpan to = buffer.first(range.iov_len);
    buffer = buffer.subspan(range.iov_len);
    for (uint64_t at = reinterpret_cast<uint64_t>(range.iov_base); !to.empty();) {
      ssize_t n = ::pread(fd, to.data(), to.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return sys_error("shared memory", "cannot be read");
      if (n == 0) {
        std::fill(to.begin(), to.end(), std::byte{0});
        break;
      }
      to = to.subspan(static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
    }
  }
  return {};
}

Result<void> read_batch(const Batch& batch, MutableByteSpan buffer) {
  trace::Span span("read");
  span.bytes(buffer.size());
  std::vector<iovec> ranges;
  for (const BlockPlan& block : batch.blocks) append_ranges(block, batch.part->shift, ranges);
  if (batch.part->fd >= 0) return read_file_ranges(batch.part->fd, ranges, buffer);
  return proc::read_ranges(batch.part->pid, ranges, buffer);
}

Result<void> add_batch(const Batch& batch, ByteSpan data, store::ImageWriter& writer) {
  trace::Span span("store");
  span.bytes(data.size());
  const uint64_t base = store::space_base(batch.part->space);
  for (const BlockPlan& block : batch.blocks) {
    size_t size = data_size(block);
    CKPT_TRY(writer.add_block({base + block.address, block.data_mask, 0, block.parent_mask, data.first(size)}));
    data = data.subspan(size);
  }
  return {};
}

size_t total_bytes(const std::vector<Part>& parts) {
  size_t out = 0;
  for (const Part& part : parts) out += Batch{&part, part.blocks}.bytes();
  return out;
}

/// Runs `job(batch, offset of its data)` for every batch on a pool.
template <class Job>
Result<void> for_batches(const std::vector<Part>& parts, unsigned workers, const Cancel* cancel, Job job) {
  WorkerPool pool(workers);
  size_t offset = 0;
  for (const Part& part : parts) {
    for (size_t at = 0; at < part.blocks.size(); at += kBatchBlocks) {
      if (cancel != nullptr) CKPT_TRY(cancel->check());
      Batch batch{&part, std::span(part.blocks).subspan(at, std::min(kBatchBlocks, part.blocks.size() - at))};
      if (!pool.submit([=, &job]() -> Result<void> { return job(batch, offset); })) return pool.finish();
      offset += batch.bytes();
    }
  }
  return pool.finish();
}

}  // namespace

Result<void> copy_blocks(const std::vector<Part>& parts, store::ImageWriter& writer, const CopyOptions& options) {
  return for_batches(parts, options.workers, options.cancel, [&](const Batch& batch, size_t) -> Result<void> {
    thread_local std::vector<std::byte> buffer(kBatchBlocks * kBlockSize);
    size_t size = batch.bytes();
    CKPT_TRY(read_batch(batch, MutableByteSpan(buffer.data(), size)));
    CKPT_TRY(add_batch(batch, ByteSpan(buffer.data(), size), writer));
    if (options.progress != nullptr) options.progress->advance(size);
    return {};
  });
}

std::optional<Staging> Staging::make(uint64_t bytes, uint64_t limit) {
  if (bytes > limit) return std::nullopt;
  Staging out;
  if (bytes == 0) return out;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) return std::nullopt;
  out.buffer_ = Mapping(at, bytes);
  // Under a hypervisor that shadows page tables a populated page still costs it a fault of some 10 us when it is first used.
  for (uint64_t page = 0; page < bytes; page += kPageSize) static_cast<volatile std::byte*>(at)[page] = std::byte{0};
  return out;
}

bool Staging::fits(const std::vector<Part>& parts) const { return total_bytes(parts) <= buffer_.size(); }

Result<void> Staging::read(const std::vector<Part>& parts, unsigned workers) {
  CKPT_ASSERT(fits(parts));
  // Blocks without a page to copy are the many in a delta: not even looked at by the workers.
  std::vector<Part> wanted;
  size_t blocks = 0, offset = 0;
  for (const Part& part : parts) {
    Part& some = wanted.emplace_back(Part{part.space, part.pid, part.fd, part.shift, {}});
    std::copy_if(part.blocks.begin(), part.blocks.end(), std::back_inserter(some.blocks), [](const BlockPlan& b) { return b.data_mask != 0; });
    blocks += some.blocks.size();
  }
  auto read_at = [&](const Batch& batch, size_t at) { return read_batch(batch, MutableByteSpan(buffer_.data() + at, batch.bytes())); };
  if (blocks > kBatchBlocks) return for_batches(wanted, workers, nullptr, read_at);
  for (const Part& part : wanted) {  // starting threads would cost more than the copy
    Batch batch{&part, part.blocks};
    CKPT_TRY(read_at(batch, offset));
    offset += batch.bytes();
  }
  return {};
}

Result<void> Staging::write(const std::vector<Part>& parts, store::ImageWriter& writer, const CopyOptions& options) const {
  return for_batches(parts, options.workers, options.cancel, [&](const Batch& batch, size_t offset) -> Result<void> {
    const size_t size = batch.bytes();
    CKPT_TRY(add_batch(batch, ByteSpan(buffer_.data() + offset, size), writer));
    if (options.progress != nullptr) options.progress->advance(size);
    return {};
  });
}

}  // namespace ckpt::capture
