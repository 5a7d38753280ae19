#include "lib/tensor/piece_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "lib/base/checked.h"
#include "lib/base/copy.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/base/trace.h"

namespace ckpt::tensor {

namespace {

// Read into a buffer that stays in the second-level cache, summed there and written from there: 2 GiB from and to the
// page cache of ext4 take 0.35 to 0.45 s on two cores, against 0.48 to 0.57 s for the same reads beside
// copy_file_range, 0.58 s for a mapping beside it and 0.60 s for blocks of 1 MiB. So the kernel copies only what needs
// no CRC, and shares blocks where the file system can.
constexpr uint64_t kReadAtOnce = 256 << 10;
constexpr uint64_t kRegionBlock = 512 << 10;  ///< gathered from several shards at once
constexpr uint64_t kGathered = 1 << 20;     ///< small pieces are written together
constexpr uint64_t kWriteback = 32 << 20;   ///< writeback is started in steps of this
constexpr uint64_t kMaxSlab = 64 << 20;
constexpr uint64_t kClonedFrom = 1 << 20;   ///< runs from this size on are worth trying to share

/// The range that the piece's CRC is of, where it has no tensor part.
bool is_summed(const Piece& piece, const Part& part) {
  return !piece.crc_slots.empty() && part.range.length > 0 &&
         std::none_of(piece.parts.begin(), piece.parts.end(),
                      [](const Part& other) { return other.target != nullptr; });
}

const Part* tensor_part(const Piece& piece) {
  for (const Part& part : piece.parts) {
    if (part.target != nullptr) return &part;
  }
  return nullptr;
}

/// Puts the CRC where it belongs in `text`, which lies at `at` of the file; what belongs elsewhere is kept.
void patch(MutableByteSpan text, uint64_t at, const std::vector<uint64_t>& slots, uint32_t crc,
           std::vector<uint64_t>& done) {
  for (uint64_t slot : slots) {
    if (slot < at || slot + 4 > at + text.size()) continue;
    std::memcpy(text.data() + (slot - at), &crc, 4);
    done.push_back(slot);
  }
}

void keep_late(const std::vector<uint64_t>& slots, const std::vector<uint64_t>& done, uint32_t crc,
               std::vector<LateCrc>& late) {
  for (uint64_t slot : slots) {
    if (std::find(done.begin(), done.end(), slot) == done.end()) late.push_back({slot, crc});
  }
}

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

Result<void> write_zeros(io::OutputFile& out, uint64_t from, uint64_t to) {
  static const std::vector<std::byte> zeros(64 << 10);
  while (from < to) {
    const uint64_t size = std::min<uint64_t>(zeros.size(), to - from);
    CKPT_TRY(out.write(ByteSpan(zeros).first(size), from));
    from += size;
  }
  return {};
}

/// What lies between the last piece and the next is zero, and gathered pieces have it among them.
Result<void> PieceWriter::skip_to(uint64_t offset) {
  return out_.descriptor() >= 0 || !end_ ? Result<void>() : write_zeros(out_, *end_, offset);
}

Result<void> PieceWriter::write(const Piece& piece, std::vector<LateCrc>& late) {
  CKPT_TRY(state_.control.cancel.check());
  if (piece.size() <= kReadAtOnce) return gather(piece, late);
  CKPT_TRY(flush());
  CKPT_TRY(skip_to(piece.offset));
  end_ = piece.offset + piece.size();
  uint32_t crc = 0;
  uint64_t at = piece.offset;
  for (const Part& part : piece.parts) {
    const uint64_t size = part.size();
    if (part.target != nullptr && size > 0) {
      CKPT_TRY_ASSIGN(crc, write_extent(piece, {part.region, at, size}));
    } else if (is_summed(piece, part)) {
      CKPT_TRY_ASSIGN(crc, copy_run("", part.range, at, true));
    }
    at += size;
  }
  return write_texts(piece, crc, late);
}

/// A small piece: its bytes join those of its neighbours.
Result<void> PieceWriter::gather(const Piece& piece, std::vector<LateCrc>& late) {
  const uint64_t end = gathered_at_ + gathered_.size();
  if (!gathered_.empty() && (piece.offset < end || piece.offset - end > kReadAtOnce || gathered_.size() >= kGathered))
    CKPT_TRY(flush());
  if (gathered_.empty()) CKPT_TRY(skip_to(gathered_at_ = piece.offset));
  end_ = piece.offset + piece.size();
  const size_t start = piece.offset - gathered_at_, size = piece.size();
  if (gathered_.capacity() < kGathered + 2 * kReadAtOnce) gathered_.reserve(kGathered + 2 * kReadAtOnce);
  gathered_.resize(start + size);  // zeros between pieces
  uint32_t crc = 0;
  size_t at = start;
  for (const Part& part : piece.parts) {
    MutableByteSpan out(gathered_.data() + at, part.size());
    at += out.size();
    if (part.target != nullptr) {
      if (out.empty()) continue;
      lease(*part.target, out.size());
      CKPT_TRY(fill(part, part.region, out));
      const bool whole = part.padded.empty() || part.padded == part.region.shape;
      const auto run =
          compares() && whole ? raw_run(state_.selection, *part.target, part.region, part.shard) : std::nullopt;
      if (run || !piece.crc_slots.empty()) crc = crc32(0, out);
      if (run) note_run(part.target->key, *run, crc);
      else note_tensor(*part.target);
    } else if (part.range.length > 0) {
      CKPT_TRY_ASSIGN(auto file, state_.files.open(part.range.file));
      CKPT_TRY(
          io::pread_exact(file->get(), out, part.range.offset, state_.selection.source->files[part.range.file].path));
      if (is_summed(piece, part)) {
        crc = crc32(0, out);
        if (compares()) note_run("", part.range, crc);
      }
    } else {
      std::memcpy(out.data(), part.text.data(), out.size());
    }
  }
  std::vector<uint64_t> done;
  patch(MutableByteSpan(gathered_).subspan(start), piece.offset, piece.crc_slots, crc, done);
  keep_late(piece.crc_slots, done, crc, late);
  return {};
}

Result<void> PieceWriter::flush() {
  if (gathered_.empty()) return {};
  CKPT_TRY(put(gathered_, gathered_at_));
  gathered_.clear();
  return {};
}

/// Region bytes as the part wants them: in the corner of its padded box, if it has one.
Result<void> PieceWriter::fill(const Part& part, const Region& region, MutableByteSpan out) {
  if (part.padded.empty() || part.padded == region.shape) return reader_->read(*part.target, region, out);
  const uint32_t item = item_size(part.target->dtype);
  corner_.resize(element_count(region.shape).value_or(0) * item);
  CKPT_TRY(reader_->read(*part.target, region, corner_));
  std::memset(out.data(), 0, out.size());
  place_corner(corner_, region.shape, out, part.padded, item);
  return {};
}

Result<uint32_t> PieceWriter::write_extent(const Piece& piece, const Extent& extent) {
  const Part& part = *tensor_part(piece);
  trace::Span span(trace::kept(part.target->key));
  span.bytes(extent.bytes);
  const bool wants_crc = !piece.crc_slots.empty(), whole = part.padded.empty() || part.padded == part.region.shape;
  const auto run = whole ? raw_run(state_.selection, *part.target, extent.region, part.shard) : std::nullopt;
  auto copied = run ? copy_run(part.target->key, *run, extent.offset, wants_crc)
                    : copy_region(part, extent.region, extent.offset, wants_crc);
  if (!copied && answers_no(copied.error().code))
    copied.error().causes.push_back("while writing tensor " + part.target->key);
  return copied;
}

Result<void> PieceWriter::write_texts(const Piece& piece, uint32_t crc, std::vector<LateCrc>& late) {
  uint64_t at = piece.offset;
  std::vector<uint64_t> done;
  for (const Part& part : piece.parts) {
    const uint64_t size = part.size();
    if (part.range.length > 0 && part.target == nullptr) {
      if (!is_summed(piece, part)) CKPT_TRY(copy_file(part.range, at));
    } else if (part.target == nullptr) {
      std::string text = part.text;
      MutableByteSpan bytes(reinterpret_cast<std::byte*>(text.data()), text.size());
      patch(bytes, at, piece.crc_slots, crc, done);
      CKPT_TRY(put(bytes, at));
    }
    at += size;
  }
  keep_late(piece.crc_slots, done, crc, late);
  return {};
}

void PieceWriter::note_run(const std::string& key, const FileRange& run, uint32_t crc) {
  const auto in = state_.checksums.note_run(run, crc, key);
  records_.insert(in.begin(), in.end());
}

/// Parts of the target's tensor were read otherwise than as runs.
void PieceWriter::note_tensor(const Target& target) {
  const Tensor* tensor = &state_.selection.tensor(target);
  if (!compares() || noted_ == tensor) return;
  noted_ = tensor;
  const auto in = state_.checksums.note_tensor(*tensor);
  records_.insert(in.begin(), in.end());
}

/// A run of a source file to `to`; its CRC where one is wanted, here or by the source's own.
Result<uint32_t> PieceWriter::copy_run(const std::string& key, const FileRange& run, uint64_t to, bool wants_crc) {
  wants_crc = wants_crc || compares();
  const std::string& name = state_.selection.source->files[run.file].path;
  CKPT_TRY_ASSIGN(auto source, state_.files.open(run.file));
  uint64_t cloned = 0;
  const bool aligned = run.offset % io::kCloneAlignment == 0 && to % io::kCloneAlignment == 0;
  if (aligned && run.length >= kClonedFrom && out_.descriptor() >= 0 && state_.clones.load(std::memory_order_relaxed)) {
    const uint64_t whole = align_down(run.length, io::kCloneAlignment);
    if (io::clone_range(source->get(), run.offset, out_.descriptor(), to, whole))
      cloned = whole;
    else state_.clones.store(false, std::memory_order_relaxed);
  }
  if (run.length > kReadAtOnce) {
    ::posix_fadvise(source->get(), static_cast<off_t>(run.offset), static_cast<off_t>(run.length),
                    POSIX_FADV_SEQUENTIAL);
  }
  uint32_t crc = 0;
  block_.resize(std::max<size_t>(block_.size(), kReadAtOnce));
  for (uint64_t at = wants_crc ? 0 : cloned; at < run.length;) {
    CKPT_TRY(state_.control.cancel.check());
    MutableByteSpan block(block_.data(), std::min(kReadAtOnce, run.length - at));
    if (at < cloned) block = block.first(std::min<uint64_t>(block.size(), cloned - at));
    CKPT_TRY(io::pread_exact(source->get(), block, run.offset + at, name));
    if (wants_crc) crc = crc32(crc, block);
    if (at >= cloned) CKPT_TRY(put(block, to + at));
    at += block.size();
  }
  state_.control.progress.advance(cloned);
  if (state_.drop_cache) {
    ::posix_fadvise(source->get(), static_cast<off_t>(run.offset), static_cast<off_t>(run.length), POSIX_FADV_DONTNEED);
  }
  if (compares()) note_run(key, run, crc);
  return crc;
}

/// A region that no single run holds, in blocks that are gathered in memory.
Result<uint32_t> PieceWriter::copy_region(const Part& part, const Region& region, uint64_t to, bool wants_crc) {
  const bool padded = !part.padded.empty() && part.padded != region.shape;
  const uint32_t item = item_size(part.target->dtype);
  const uint64_t bytes = element_count(region.shape).value_or(0) * item;
  const uint64_t slab = lease(*part.target, bytes);
  note_tensor(*part.target);
  uint32_t crc = 0;
  if (padded) {
    block_.resize(part.size());
    CKPT_TRY(fill(part, region, block_));
    if (wants_crc) crc = crc32(0, block_);
    CKPT_TRY(put(block_, to));
    return crc;
  }
  RowMajorBlocks blocks(region.shape, item, block_bytes(state_.selection, *part.target, region.shape, slab));
  while (auto block = blocks.next()) {
    CKPT_TRY(state_.control.cancel.check());
    const uint64_t size = element_count(block->shape).value_or(0) * item;
    if (block_.size() < size) block_.resize(size);
    MutableByteSpan out(block_.data(), size);
    for (size_t axis = 0; axis < region.offset.size(); ++axis) block->offset[axis] += region.offset[axis];
    CKPT_TRY(reader_->read(*part.target, *block, out));
    if (wants_crc) crc = crc32(crc, out);
    CKPT_TRY(put(out, to));
    to += size;
  }
  return crc;
}

Result<void> PieceWriter::copy_file(const FileRange& range, uint64_t to) {
  CKPT_TRY_ASSIGN(auto file, state_.files.open(range.file));
  const std::string& name = state_.selection.source->files[range.file].path;
  if (out_.descriptor() >= 0) {
    CKPT_TRY(io::copy_range(file->get(), range.offset, out_.descriptor(), to, range.length, name));
    state_.control.progress.advance(range.length);
    return {};
  }
  block_.resize(std::max<size_t>(block_.size(), kReadAtOnce));
  for (uint64_t at = 0; at < range.length; at += kReadAtOnce) {
    CKPT_TRY(state_.control.cancel.check());
    const MutableByteSpan block(block_.data(), std::min(kReadAtOnce, range.length - at));
    CKPT_TRY(io::pread_exact(file->get(), block, range.offset + at, name));
    CKPT_TRY(put(block, to + at));
  }
  return {};
}

/// Gets the memory for reading regions of this target and returns what may be gathered at once. Regions that mix
/// encoded shards are gathered in blocks as large as may be: each block decodes all shards that it touches.
uint64_t PieceWriter::lease(const Target& target, uint64_t region_bytes) {
  const Tensor& tensor = state_.selection.tensor(target);
  const uint64_t decode = decode_memory(tensor);
  const uint64_t budget = decode_budget(state_.control.max_memory);
  uint64_t slab = kRegionBlock;
  if (decode > 0) {
    const uint64_t share = budget / state_.workers;
    const uint64_t most = std::min(share > decode ? share - decode : 0, budget - decode);
    slab = std::clamp<uint64_t>(std::min(most, region_bytes), kReadAtOnce, kMaxSlab);
  }
  const uint64_t need = decode == 0 ? 0 : std::min(decode + slab, budget);
  if (need > leased_ || !reader_) {
    release();
    state_.budget.acquire(need);
    leased_ = need;
    reader_.emplace(state_.selection, state_.files);
  }
  return slab;
}

void PieceWriter::release() {
  reader_.reset();
  if (leased_ > 0) state_.budget.release(leased_);
  leased_ = 0;
}

Result<void> PieceWriter::put(ByteSpan data, uint64_t to) {
  CKPT_TRY(out_.write(data, to));
  wrote(data.size(), to);
  return {};
}

void PieceWriter::wrote(uint64_t bytes, uint64_t to) {
  state_.control.progress.advance(bytes);
  if (!state_.control.durable || out_.descriptor() < 0) return;
  // The disk starts on what is there while the rest is still read: the fsync at the end then waits for little.
  unsynced_ += bytes;
  if (unsynced_ >= kWriteback && to > unsynced_at_) {
    ::sync_file_range(out_.descriptor(), static_cast<off64_t>(unsynced_at_), static_cast<off64_t>(to - unsynced_at_),
                      SYNC_FILE_RANGE_WRITE);
    unsynced_at_ = to;
    unsynced_ = 0;
  }
}

}  // namespace ckpt::tensor
