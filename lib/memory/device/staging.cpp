#include "lib/memory/device/staging.h"

#include <algorithm>

#include "lib/base/checked.h"
#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"

namespace ckpt::capture {

using device::Address;
using device::ChunkHash;
using device::Range;

namespace {

constexpr size_t kGroup = 8;  ///< chunks that one job fills
constexpr uint64_t kHashBytes = 4096;     ///< for those of a block
constexpr uint64_t kHashRoom = 1 << 20;   ///< 4 GiB of chunks are hashed between two waits

}  // namespace

Result<std::unique_ptr<StagingRing>> StagingRing::create(device::Device& device, const StagingOptions& options) {
  CKPT_ASSERT(options.blocks >= 1 && options.block_bytes >= device::kMinChunk);
  CKPT_ASSERT(options.block_bytes / device::kMinChunk * sizeof(ChunkHash) <= kHashBytes);
  std::unique_ptr<StagingRing> out(new StagingRing(options));
  out->blocks_.resize(options.blocks);
  for (Block& block : out->blocks_) {
    CKPT_TRY_ASSIGN(block.host, device.allocate_pinned(options.block_bytes + kHashBytes));
    auto staging = device.allocate(options.block_bytes);
    if (staging) block.staging = std::move(*staging);
    else if (staging.error().code != Code::kNoRoom) return std::move(staging).error();
  }
  CKPT_TRY_ASSIGN(out->hash_room_, device.allocate_pinned(kHashRoom));
  CKPT_TRY_ASSIGN(out->stream_, device.create_stream());
  return out;
}

std::span<ChunkHash> StagingRing::hashes(Block& block, size_t count) {
  return {reinterpret_cast<ChunkHash*>(block.host->bytes().data() + options_.block_bytes), count};
}

StagingRing::Block* StagingRing::next_free() {
  std::unique_lock lock(mutex_);
  auto is_free = [](const Block& block) { return block.free; };
  changed_.wait(lock, [&] { return failed_ || std::any_of(blocks_.begin(), blocks_.end(), is_free); });
  if (failed_) return nullptr;
  Block& block = *std::find_if(blocks_.begin(), blocks_.end(), is_free);
  block.free = false;
  return &block;
}

void StagingRing::give_back(Block& block, bool failed) {
  std::lock_guard lock(mutex_);
  block.free = true;
  failed_ = failed_ || failed;
  changed_.notify_all();
}

void StagingRing::retire(std::unique_ptr<device::Buffer> memory) {
  auto done = stream_->synchronize(0);
  if (!done && done.error().code == Code::kBusy) retired_.push_back(std::move(memory));
}

void StagingRing::settle() {
  (void)stream_->synchronize(options_.timeout_us);
  for (Block& block : blocks_) block.free = true;
  failed_ = false;
}

Result<void> StagingRing::submit(Block& block, std::span<const Address> chunks, uint64_t chunk) {
  const uint64_t size = chunks.size() * chunk;
  const Address to = block.staging ? block.staging->range().start : block.host->device_range().start;
  CKPT_TRY(stream_->copy_and_hash(chunks, chunk, to, hashes(block, chunks.size())));
  if (block.staging) CKPT_TRY(stream_->copy_to_host(block.host->bytes().first(size), {to, size}));
  CKPT_TRY_ASSIGN(block.ready, stream_->record());
  return {};
}

Result<void> StagingRing::to_host(std::span<const Address> chunks, uint64_t chunk, const Take& take) {
  if (chunks.empty()) return {};
  Result<void> out = take_all(chunks, chunk, take);
  if (!out) settle();
  return out;
}

Result<void> StagingRing::take_all(std::span<const Address> chunks, uint64_t chunk, const Take& take) {
  const size_t per_block = options_.block_bytes / chunk;
  WorkerPool pool(std::min<unsigned>(WorkerPool::threads_for(options_.workers), static_cast<unsigned>(blocks_.size())));
  Result<void> own;
  for (size_t at = 0; own && at < chunks.size(); at += per_block) {
    own = check_cancel();
    Block* block = own ? next_free() : nullptr;
    if (block == nullptr) break;
    const auto part = chunks.subspan(at, std::min(per_block, chunks.size() - at));
    own = submit(*block, part, chunk);
    if (!own) break;
    const bool going = pool.submit([this, block, at, part, chunk, &take]() -> Result<void> {
      trace::Span span("device block");
      span.bytes(part.size() * chunk);
      Taken taken{*this, *block};
      CKPT_TRY(block->ready->wait(options_.timeout_us));
      for (size_t i = 0; i < part.size(); ++i) {
        CKPT_TRY(take(at + i, block->host->bytes().subspan(i * chunk, chunk), hashes(*block, part.size())[i]));
      }
      taken.failed = false;
      return {};
    });
    if (!going) break;
  }
  Result<void> others = pool.finish();
  return own ? others : own;
}

Result<void> StagingRing::to_device(std::span<const Address> chunks, uint64_t chunk, const Give& give) {
  const size_t per_block = options_.block_bytes / chunk;
  WorkerPool pool(WorkerPool::threads_for(options_.workers));
  Result<void> out;
  for (size_t at = 0, turn = 0; out && at < chunks.size(); at += per_block, ++turn) {
    out = check_cancel();
    Block& block = blocks_[turn % blocks_.size()];
    if (out && turn >= blocks_.size()) out = block.ready->wait(options_.timeout_us);
    const auto part = chunks.subspan(at, std::min(per_block, chunks.size() - at));
    for (size_t i = 0; out && i < part.size(); i += kGroup) {
      const bool going = pool.submit([&, at, i]() -> Result<void> {
        for (size_t k = i; k < std::min(part.size(), i + kGroup); ++k) {
          CKPT_TRY(give(at + k, block.host->bytes().subspan(k * chunk, chunk)));
        }
        return {};
      });
      if (!going) break;
    }
    if (out) out = pool.finish();
    for (size_t i = 0; out && i < part.size();) {
      size_t end = i + 1;  // neighbours go in one copy
      while (end < part.size() && part[end] == part[end - 1] + chunk) ++end;
      out = stream_->copy_to_device({part[i], (end - i) * chunk},
                                    block.host->bytes().subspan(i * chunk, (end - i) * chunk));
      i = end;
    }
    if (!out) break;
    auto ready = stream_->record();
    if (ready) block.ready = std::move(*ready);
    else out = std::move(ready).error();
  }
  Result<void> done = chunks.empty() ? Result<void>() : stream_->synchronize(options_.timeout_us);
  if (out) out = std::move(done);
  return out;
}

Result<std::vector<ChunkHash>> StagingRing::hash(std::span<const Range> ranges, uint64_t chunk) {
  trace::Span span("device hash");
  std::vector<ChunkHash> out;
  const std::span<ChunkHash> room{reinterpret_cast<ChunkHash*>(hash_room_->bytes().data()),
                                  kHashRoom / sizeof(ChunkHash)};
  size_t used = 0;
  auto flush = [&]() -> Result<void> {
    CKPT_TRY(stream_->synchronize(options_.timeout_us));
    out.insert(out.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(used));
    used = 0;
    return {};
  };
  Result<void> result;
  for (const Range& range : ranges) {
    for (uint64_t at = 0; result && at < range.size;) {
      if (used == room.size()) result = flush();
      if (!result) break;
      const size_t count = std::min<size_t>((range.size - at) / chunk, room.size() - used);
      result = stream_->hash({range.start + at, count * chunk}, chunk, room.subspan(used, count));
      used += count, at += count * chunk;
    }
  }
  if (result) result = flush();
  if (!result) settle();
  if (!result) return std::move(result).error();
  return out;
}

Result<void> StagingRing::within_device(std::span<const Move> moves, uint64_t chunk) {
  Result<void> out;
  for (const Move& move : moves) {
    out = stream_->copy(move.to, {move.from, chunk});
    if (!out) break;
  }
  Result<void> done = stream_->synchronize(options_.timeout_us);
  return out ? done : out;
}

Result<void> StagingRing::clear(std::span<const Address> chunks, uint64_t chunk) {
  const MutableByteSpan zeros = blocks_[0].host->bytes().first(chunk);
  std::fill(zeros.begin(), zeros.end(), std::byte{0});
  Result<void> out;
  for (size_t i = 0; out && i < chunks.size(); ++i) {
    // Over the bus once, then from chunk to chunk.
    out = i == 0 ? stream_->copy_to_device({chunks[0], chunk}, zeros) : stream_->copy(chunks[i], {chunks[0], chunk});
  }
  Result<void> done = stream_->synchronize(options_.timeout_us);
  return out ? done : out;
}

}  // namespace ckpt::capture
