#include "formats/torch_dist/item_writer.h"

#include <fcntl.h>

#include <algorithm>

#include "formats/torch_dist/object_record.h"
#include "formats/torch_dist/record.h"
#include "lib/base/checked.h"
#include "lib/base/copy.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"

namespace ckpt::torch_dist {

namespace {

// The CRC has to see every byte. Read into a buffer that stays in the second-level cache, summed there and written from
// there: 2 GiB from and to the page cache of ext4 take 0.35 to 0.45 s on two cores, against 0.48 to 0.57 s for the same
// reads beside copy_file_range, 0.58 s for a mapping beside it and 0.60 s for blocks of 1 MiB. So the kernel copies only
// what needs no CRC, and shares blocks where the file system can.
constexpr uint64_t kBlock = 256 << 10;
constexpr uint64_t kWriteback = 32 << 20;   ///< writeback is started in steps of this
constexpr uint64_t kMaxSlab = 64 << 20;

}  // namespace

void MemoryBudget::acquire(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return free_ >= bytes; });
  free_ -= bytes;
}

void MemoryBudget::release(uint64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    free_ += bytes;
  }
  changed_.notify_all();
}

Result<void> ItemWriter::write(const Item& item) {
  CKPT_TRY(state_.control.cancel.check());
  return item.is_object ? write_object(item) : write_tensor(item);
}

Result<void> ItemWriter::write_tensor(const Item& item) {
  const tensor::Tensor& tensor = state_.plan.tensor(item);
  const tensor::Region region = state_.plan.region(item);
  const TensorRecord record = tensor_record(tensor.dtype, region.shape);
  const uint64_t data = item.offset + record.data_offset();
  uint32_t crc = 0;
  if (record.data_size() > 0) {
    const auto run = raw_run(tensor, region, state_.plan.grids[item.subject].shard(item.piece));
    auto copied = run ? copy_run(*run, data) : copy_region(tensor, region, data);
    if (!copied && copied.error().code == Code::kAnswerNo) {
      copied.error().causes.push_back("while writing tensor " + tensor.key);
    }
    CKPT_TRY_ASSIGN(crc, std::move(copied));
  }
  CKPT_TRY(put(as_bytes(record.head(crc)), item.offset));
  return put(as_bytes(record.tail(crc)), data + record.data_size());
}

/// A run of a source file to `to`; its CRC.
Result<uint32_t> ItemWriter::copy_run(const tensor::FileRange& run, uint64_t to) {
  const std::string& name = state_.plan.source->files[run.file].path;
  CKPT_TRY_ASSIGN(auto source, state_.files.open(run.file));
  uint64_t cloned = 0;
  const bool aligned = run.offset % io::kCloneAlignment == 0 && to % io::kCloneAlignment == 0;
  if (aligned && run.length >= kLargeData && state_.clones.load(std::memory_order_relaxed)) {
    const uint64_t whole = align_down(run.length, io::kCloneAlignment);
    if (io::clone_range(source->get(), run.offset, out_, to, whole)) cloned = whole;
    else state_.clones.store(false, std::memory_order_relaxed);
  }
  if (run.length > kBlock) {
    ::posix_fadvise(source->get(), static_cast<off_t>(run.offset), static_cast<off_t>(run.length), POSIX_FADV_SEQUENTIAL);
  }
  uint32_t crc = 0;
  block_.resize(kBlock);
  for (uint64_t at = 0; at < run.length;) {
    CKPT_TRY(state_.control.cancel.check());
    MutableByteSpan block(block_.data(), std::min(kBlock, run.length - at));
    if (at < cloned) block = block.first(std::min<uint64_t>(block.size(), cloned - at));
    CKPT_TRY(io::pread_exact(source->get(), block, run.offset + at, name));
    crc = crc32(crc, block);
    if (at < cloned) advance(block.size());
    else CKPT_TRY(put(block, to + at));
    at += block.size();
  }
  if (state_.drop_cache) {
    ::posix_fadvise(source->get(), static_cast<off_t>(run.offset), static_cast<off_t>(run.length), POSIX_FADV_DONTNEED);
  }
  return crc;
}

/// A region that no single run holds, in blocks that are gathered in memory.
Result<uint32_t> ItemWriter::copy_region(const tensor::Tensor& tensor, const tensor::Region& region, uint64_t to) {
  tensor::Tensor part;  // the region as a tensor of its own, to be cut into row-major blocks
  part.dtype = tensor.dtype;
  part.shape = region.shape;
  tensor::RowMajorBlocks blocks(part, lease(tensor, part.bytes()));
  std::vector<std::byte> buffer;
  uint32_t crc = 0;
  while (auto block = blocks.next()) {
    CKPT_TRY(state_.control.cancel.check());
    buffer.resize(tensor::element_count(block->shape).value_or(0) * item_size(tensor.dtype));
    for (size_t axis = 0; axis < region.offset.size(); ++axis) block->offset[axis] += region.offset[axis];
    CKPT_TRY(reader_->read(tensor, *block, buffer));
    crc = crc32(crc, buffer);
    CKPT_TRY(put(buffer, to));
    to += buffer.size();
  }
  return crc;
}

/// Gets the memory for reading regions of this tensor and returns what may be gathered at once. Pieces that mix encoded
/// shards are gathered in blocks as large as may be: each block decodes all shards that it touches.
uint64_t ItemWriter::lease(const tensor::Tensor& tensor, uint64_t region_bytes) {
  const uint64_t decode = decode_memory(tensor);
  const uint64_t budget = decode_budget(state_.plan.options.max_memory);
  uint64_t slab = kBlock;
  if (decode > 0 && state_.plan.options.shard_size > 0) {
    const uint64_t share = budget / state_.workers;
    const uint64_t most = std::min(share > decode ? share - decode : 0, budget - decode);
    slab = std::clamp<uint64_t>(std::min(most, region_bytes), kBlock, kMaxSlab);
  }
  const uint64_t need = decode == 0 ? 0 : std::min(decode + slab, budget);
  if (need > leased_ || !reader_) {
    release();
    state_.budget.acquire(need);
    leased_ = need;
    reader_.emplace(*state_.plan.source, state_.files);
  }
  return slab;
}

void ItemWriter::release() {
  reader_.reset();
  if (leased_ > 0) state_.budget.release(leased_);
  leased_ = 0;
}

Result<void> ItemWriter::write_object(const Item& item) {
  const tensor::Catalog& source = *state_.plan.source;
  const tensor::Object& object = state_.plan.object(item);
  CKPT_TRY_ASSIGN(ObjectRecord record, object_record(source, object, state_.plan.megatron, Detail::kContent));
  if (record.size != item.length) return fail(Code::kAnswerNo, object.key, "changed while it was read");
  uint64_t to = item.offset;
  for (const Part& part : record.parts) {
    if (part.range.length == 0) {
      CKPT_TRY(put(as_bytes(part.text), to));
      to += part.text.size();
      continue;
    }
    CKPT_TRY_ASSIGN(auto file, state_.files.open(part.range.file));
    CKPT_TRY(io::copy_range(file->get(), part.range.offset, out_, to, part.range.length, source.files[part.range.file].path));
    advance(part.range.length);
    to += part.range.length;
  }
  return {};
}

Result<void> ItemWriter::put(ByteSpan data, uint64_t to) {
  CKPT_TRY(io::pwrite_all(out_, data, to, name_));
  advance(data.size());
  if (!state_.control.durable) return {};
  // The disk starts on what is there while the rest is still read: the fsync at the end then waits for little.
  unsynced_ += data.size();
  if (unsynced_ >= kWriteback && to > unsynced_at_) {
    ::sync_file_range(out_, static_cast<off64_t>(unsynced_at_), static_cast<off64_t>(to - unsynced_at_), SYNC_FILE_RANGE_WRITE);
    unsynced_at_ = to;
    unsynced_ = 0;
  }
  return {};
}

void ItemWriter::advance(uint64_t bytes) { state_.control.progress.advance(bytes); }

}  // namespace ckpt::torch_dist
