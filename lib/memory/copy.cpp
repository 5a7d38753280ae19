#include "lib/memory/copy.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <mutex>

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
  const SpaceBlocks* part;
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
  trace::add(trace::kRead, trace::kBytes, buffer.size());
  std::vector<iovec> ranges;
  for (const BlockPlan& block : batch.blocks) append_ranges(block, batch.part->shift, ranges);
  if (batch.part->fd >= 0) return read_file_ranges(batch.part->fd, ranges, buffer);
  return proc::read_ranges(batch.part->pid, ranges, buffer);
}

/// Gives each block with its data to `add`.
template <class Add>
Result<void> add_batch(const Batch& batch, ByteSpan data, Add add) {
  trace::Span span("store");
  span.bytes(data.size());
  const uint64_t base = store::space_base(batch.part->space);
  for (const BlockPlan& block : batch.blocks) {
    size_t size = data_size(block);
    CKPT_TRY(add(store::Block{base + block.address, block.data_mask, 0, block.parent_mask, data.first(size)}));
    data = data.subspan(size);
  }
  return {};
}

constexpr size_t kAlone = 1 << 20;  ///< up to here waking other threads costs more than the work

struct PlacedBatch {
  Batch batch;
  size_t offset;  ///< of its data among that of all batches
};

std::vector<PlacedBatch> batches_of(const std::vector<SpaceBlocks>& parts) {
  std::vector<PlacedBatch> out;
  size_t offset = 0;
  for (const SpaceBlocks& part : parts) {
    for (size_t at = 0; at < part.blocks.size(); at += kBatchBlocks) {
      Batch batch{&part, std::span(part.blocks).subspan(at, std::min(kBatchBlocks, part.blocks.size() - at))};
      out.push_back({batch, offset});
      offset += batch.bytes();
    }
  }
  return out;
}

/// Runs `job(batch, offset of its data)` for every batch, with `workers` threads where there is much to do.
template <class Job>
Result<void> for_batches(const std::vector<SpaceBlocks>& parts, const CopyOptions& options, Job job) {
  const std::vector<PlacedBatch> batches = batches_of(parts);
  size_t blocks = 0;
  for (const SpaceBlocks& part : parts) blocks += part.blocks.size();
  std::optional<WorkerPool> pool;
  if (blocks * kBlockSize > kAlone) make_helpers(options.workers, pool);
  return side_by_side(pool ? &*pool : nullptr, batches.size(), [&](size_t i) -> Result<void> {
    if (options.cancel != nullptr) CKPT_TRY(options.cancel->check());
    return job(batches[i].batch, batches[i].offset);
  });
}

auto adder(store::ImageWriter& writer) {
  return [&writer](const store::Block& block) { return writer.add_block(block); };
}

/// One memory a worker, used again for every batch.
MutableByteSpan batch_buffer(size_t size) {
  thread_local std::vector<std::byte> buffer(kBatchBlocks * kBlockSize);
  return MutableByteSpan(buffer.data(), size);
}

/// Reads what can be read of a batch that failed as a whole, block by block, and tells what cannot.
class PrecopyReader {
 public:
  PrecopyReader(unsigned iteration, store::ImageWriter& writer, Precopied& out)
      : iteration_(iteration), writer_(writer), out_(out) {}

  uint64_t bytes() const { return bytes_; }
  Result<void> copy(const Batch& batch) {
    MutableByteSpan data = batch_buffer(batch.bytes());
    const bool read = static_cast<bool>(read_batch(batch, data));
    bytes_ += data.size();
    auto add = [&](const store::Block& block) { return writer_.add_precopied(block, iteration_); };
    if (read) return add_batch(batch, data, add);
    for (const BlockPlan& block : batch.blocks) {
      Batch one{batch.part, std::span(&block, 1)};
      MutableByteSpan bytes = data.first(data_size(block));
      auto got = read_batch(one, bytes);
      if (got) CKPT_TRY(add_batch(one, bytes, add));
      else miss(*batch.part, block);
    }
    return {};
  }

 private:
  void miss(const SpaceBlocks& part, const BlockPlan& block) {
    std::lock_guard lock(mutex_);
    out_.missed.push_back({block.address, block.address + kBlockSize, proc::page::kWritten});
    out_.missed_space.push_back(part.space);
  }

  unsigned iteration_;
  store::ImageWriter& writer_;
  std::mutex mutex_;
  Precopied& out_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace

uint64_t total_bytes(const std::vector<SpaceBlocks>& parts) {
  uint64_t out = 0;
  for (const SpaceBlocks& part : parts) out += Batch{&part, part.blocks}.bytes();
  return out;
}

void read_each_block(const SpaceBlocks& part, WorkerPool* pool, const std::function<void(size_t, ByteSpan)>& take) {
  const std::vector<SpaceBlocks> parts = {part};
  const std::vector<PlacedBatch> batches = batches_of(parts);
  (void)side_by_side(pool, batches.size(), [&](size_t i) -> Result<void> {
    const Batch& batch = batches[i].batch;
    const auto first = static_cast<size_t>(batch.blocks.data() - parts[0].blocks.data());
    MutableByteSpan data = batch_buffer(batch.bytes());
    const bool all = static_cast<bool>(read_batch(batch, data));
    for (size_t j = 0; j < batch.blocks.size(); ++j) {
      const Batch one{batch.part, batch.blocks.subspan(j, 1)};
      const MutableByteSpan bytes = data.first(one.bytes());
      const bool read = all || read_batch(one, bytes).has_value();
      take(first + j, read ? ByteSpan(bytes) : ByteSpan());
      data = data.subspan(bytes.size());
    }
    return {};
  });
}

Result<void> copy_blocks(const std::vector<SpaceBlocks>& parts, store::ImageWriter& writer,
                         const CopyOptions& options) {
  return for_batches(parts, options, [&](const Batch& batch, size_t) -> Result<void> {
    MutableByteSpan data = batch_buffer(batch.bytes());
    if (!data.empty()) CKPT_TRY(read_batch(batch, data));
    CKPT_TRY(add_batch(batch, data, adder(writer)));
    if (options.progress != nullptr) options.progress->advance(data.size());
    return {};
  });
}

Result<Precopied> pre_copy(const std::vector<SpaceBlocks>& parts, unsigned iteration, store::ImageWriter& writer,
                           const CopyOptions& options) {
  Precopied out;
  PrecopyReader reader(iteration, writer, out);
  CKPT_TRY(for_batches(parts, options, [&](const Batch& batch, size_t) -> Result<void> {
    CKPT_TRY(reader.copy(batch));
    if (options.progress != nullptr) options.progress->advance(batch.bytes());
    return {};
  }));
  out.bytes = reader.bytes();
  return out;
}

std::optional<Staging> Staging::make(uint64_t bytes, uint64_t limit) {
  if (bytes > limit) return std::nullopt;
  Staging out;
  if (bytes == 0) return out;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return std::nullopt;
  out.buffer_ = Mapping(at, bytes);
  (void)::madvise(at, bytes, MADV_HUGEPAGE);
  // Touched, not populated: under a hypervisor that shadows page tables the first use costs some 10 us more.
  for (uint64_t page = 0; page < bytes; page += kPageSize) static_cast<volatile std::byte*>(at)[page] = std::byte{0};
  return out;
}

bool Staging::fits(const std::vector<SpaceBlocks>& parts) const { return total_bytes(parts) <= buffer_.size(); }

Result<void> Staging::read(const std::vector<SpaceBlocks>& parts, WorkerPool* pool) {
  CKPT_ASSERT(fits(parts));
  const std::vector<PlacedBatch> batches = batches_of(parts);
  return side_by_side(total_bytes(parts) > kAlone ? pool : nullptr, batches.size(), [&](size_t i) -> Result<void> {
    const auto& [batch, offset] = batches[i];
    const size_t bytes = batch.bytes();
    return bytes == 0 ? Result<void>() : read_batch(batch, MutableByteSpan(buffer_.data() + offset, bytes));
  });
}

Result<void> Staging::write(const std::vector<SpaceBlocks>& parts, store::ImageWriter& writer,
                            const CopyOptions& options) const {
  return for_batches(parts, options, [&](const Batch& batch, size_t offset) -> Result<void> {
    const size_t size = batch.bytes();
    CKPT_TRY(add_batch(batch, ByteSpan(buffer_.data() + offset, size), adder(writer)));
    if (options.progress != nullptr) options.progress->advance(size);
    return {};
  });
}

}  // namespace ckpt::capture
