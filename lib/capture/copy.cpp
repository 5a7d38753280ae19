#include "lib/capture/copy.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "lib/base/worker_pool.h"
#include "lib/proc/remote_memory.h"

namespace ckpt::capture {

namespace {

using store::kBlockSize;
using store::kPageSize;

constexpr size_t kBatchBlocks = 16;  ///< 1 MiB: amortises the call, stays in the second-level cache

size_t data_size(const BlockPlan& block) { return static_cast<size_t>(std::popcount(block.data_mask)) * kPageSize; }

/// The block's runs of data pages as ranges of the target; neighbours across blocks are joined.
void append_ranges(const BlockPlan& block, std::vector<iovec>& out) {
  for (unsigned i = 0; i < store::kBlockPages;) {
    if ((block.data_mask >> i & 1) == 0) {
      ++i;
      continue;
    }
    unsigned first = i;
    while (i < store::kBlockPages && (block.data_mask >> i & 1) != 0) ++i;
    uint64_t start = block.address + first * kPageSize, size = (i - first) * kPageSize;
    if (!out.empty() && reinterpret_cast<uint64_t>(out.back().iov_base) + out.back().iov_len == start) {
      out.back().iov_len += size;
    } else {
      out.push_back({reinterpret_cast<void*>(start), size});
    }
  }
}

using Blocks = std::span<const BlockPlan>;

Result<void> read_batch(int pid, Blocks batch, MutableByteSpan buffer) {
  std::vector<iovec> ranges;
  for (const BlockPlan& block : batch) append_ranges(block, ranges);
  return proc::read_ranges(pid, ranges, buffer);
}

Result<void> add_batch(Blocks batch, ByteSpan data, store::ImageWriter& writer) {
  for (const BlockPlan& block : batch) {
    size_t size = data_size(block);
    CKPT_TRY(writer.add_block({block.address, block.data_mask, 0, block.parent_mask, data.first(size)}));
    data = data.subspan(size);
  }
  return {};
}

size_t batch_bytes(Blocks batch) {
  size_t out = 0;
  for (const BlockPlan& block : batch) out += data_size(block);
  return out;
}

/// Runs `job(batch, offset of its data)` for every batch on a pool.
template <class Job>
Result<void> for_batches(const std::vector<BlockPlan>& blocks, unsigned workers, const Cancel* cancel, Job job) {
  WorkerPool pool(workers);
  size_t offset = 0;
  for (size_t at = 0; at < blocks.size(); at += kBatchBlocks) {
    if (cancel != nullptr) CKPT_TRY(cancel->check());
    Blocks batch = Blocks(blocks).subspan(at, std::min(kBatchBlocks, blocks.size() - at));
    if (!pool.submit([=, &job]() -> Result<void> { return job(batch, offset); })) break;
    offset += batch_bytes(batch);
  }
  return pool.finish();
}

}  // namespace

Result<void> copy_blocks(int pid, const std::vector<BlockPlan>& blocks, store::ImageWriter& writer, const CopyOptions& options) {
  return for_batches(blocks, options.workers, options.cancel, [&](Blocks batch, size_t) -> Result<void> {
    thread_local std::vector<std::byte> buffer(kBatchBlocks * kBlockSize);
    size_t size = batch_bytes(batch);
    CKPT_TRY(read_batch(pid, batch, MutableByteSpan(buffer.data(), size)));
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
  return out;
}

bool Staging::fits(const std::vector<BlockPlan>& blocks) const { return batch_bytes(blocks) <= buffer_.size(); }

Result<void> Staging::read(int pid, const std::vector<BlockPlan>& blocks, unsigned workers) {
  CKPT_ASSERT(fits(blocks));
  // Blocks without a page to copy are the many in a delta: not even looked at by the workers.
  std::vector<BlockPlan> wanted;
  std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(wanted), [](const BlockPlan& b) { return b.data_mask != 0; });
  if (wanted.size() <= kBatchBlocks) {  // starting threads would cost more than the copy
    return read_batch(pid, wanted, MutableByteSpan(buffer_.data(), batch_bytes(wanted)));
  }
  return for_batches(wanted, workers, nullptr, [&](Blocks batch, size_t offset) -> Result<void> {
    return read_batch(pid, batch, MutableByteSpan(buffer_.data() + offset, batch_bytes(batch)));
  });
}

Result<void> Staging::write(const std::vector<BlockPlan>& blocks, store::ImageWriter& writer, const CopyOptions& options) const {
  return for_batches(blocks, options.workers, options.cancel, [&](Blocks batch, size_t offset) -> Result<void> {
    CKPT_TRY(add_batch(batch, ByteSpan(buffer_.data() + offset, batch_bytes(batch)), writer));
    if (options.progress != nullptr) options.progress->advance(batch_bytes(batch));
    return {};
  });
}

}  // namespace ckpt::capture
