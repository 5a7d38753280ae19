#include "lib/memory/lazy/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <csignal>
#include <optional>
#include <tuple>

#include "lib/proc/procfs.h"

namespace ckpt::restore {

namespace {

using proc::Obstacle;
using proc::Placed;

alignas(4096) constexpr std::array<std::byte, store::kPageSize> kZeros{};

constexpr size_t kNotLoaded = ~size_t{0};  ///< a block that has no number yet

uint16_t mask_of(unsigned page, unsigned count) { return static_cast<uint16_t>(((1u << count) - 1) << page); }

}  // namespace

void LazyPagesMemory::take_blocks() {
  std::unique_lock lock(mutex_);
  std::tie(first_, last_) = image_.blocks_of(space_);
  done_ = std::vector<std::atomic<uint16_t>>(last_ - first_);
  loaded_.store(true, std::memory_order_release);
}

std::unique_ptr<LazyPagesMemory> LazyPagesMemory::fork(UniqueFd userfault) const {
  auto out = std::make_unique<LazyPagesMemory>(image_, std::move(userfault), can_poison_, 0, space_);
  out->places_ = places_;
  out->runs_ = runs_;
  if (!loaded_.load(std::memory_order_acquire)) return out;
  out->take_blocks();
  for (size_t i = 0; i < done_.size(); ++i)
    out->done_[i].store(done_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
  return out;
}

/// last_: there is none.
size_t LazyPagesMemory::block_at(uint64_t source) const {
  const uint64_t address = source & ~(store::kBlockSize - 1);
  const auto& blocks = image_.blocks();
  auto begin = blocks.begin() + static_cast<ptrdiff_t>(first_), end = blocks.begin() + static_cast<ptrdiff_t>(last_);
  auto found = std::lower_bound(begin, end, address, [](const auto& block, uint64_t a) { return block.address < a; });
  return found == end || found->address != address ? last_ : static_cast<size_t>(found - blocks.begin());
}

uint16_t LazyPagesMemory::missing(size_t block) const {
  return static_cast<uint16_t>(image_.blocks()[block].data_mask &
                               ~done_[block - first_].load(std::memory_order_relaxed));
}

bool LazyPagesMemory::is_wanted(uint64_t source) const {
  const size_t block = block_at(source);
  return block != last_ && (missing(block) >> (source % store::kBlockSize / store::kPageSize) & 1) != 0;
}

void LazyPagesMemory::mark(size_t block, uint16_t pages) {
  if (block != kNotLoaded) done_[block - first_].fetch_or(pages, std::memory_order_relaxed);
}

/// Calls `visit(target, page, count)` for the places of pages of the block, as long runs as there are.
template <class Visit>
LazyPagesMemory::Outcome LazyPagesMemory::for_each_run(uint64_t address, uint16_t pages, Visit visit) {
  for (const PagePlaces::PageExtent& piece : places_.places_of(address, store::kBlockSize)) {
    const auto from = static_cast<unsigned>((piece.source - address) / store::kPageSize);
    const auto to = static_cast<unsigned>(from + piece.size / store::kPageSize);
    for (unsigned page = from; page < to;) {
      const unsigned count =
          std::min<unsigned>(static_cast<unsigned>(std::countr_one(static_cast<unsigned>(pages) >> page)), to - page);
      if (count != 0 && visit(piece.target + (page - from) * store::kPageSize, page, count) == Outcome::kAgain)
        return Outcome::kAgain;
      page += std::max(count, 1u);
    }
  }
  return Outcome::kDone;
}

/// `put_pages(target, page, count)` for pages in a row, past those that need it no more. Under the shared lock.
template <class Put>
LazyPagesMemory::Outcome LazyPagesMemory::put(size_t block, uint64_t target, unsigned page, unsigned count,
                                              Put put_pages) {
  bool singly = false, not_ours = false;
  while (count > 0) {
    const unsigned wanted = singly ? 1 : count;
    const Placed placed = put_pages(target, page, wanted);
    auto past = static_cast<unsigned>(placed.bytes / store::kPageSize);
    pages_in_ += past;
    // A row that lies in more than one mapping is refused as if there was none. And the kernel looks for changes before
    // it looks for the mapping: only the second time it is certain that no change, which nobody has read of yet, has
    // taken it away.
    const bool refused = placed.obstacle == Obstacle::kNotOurs && past == 0;
    const bool nowhere = refused && wanted == 1 && not_ours;
    not_ours = refused && wanted == 1 && !not_ours;
    singly = refused;
    if (nowhere || placed.obstacle == Obstacle::kThere) past += 1;
    if (past != 0) mark(block, mask_of(page, past));
    page += past, count -= past, target += past * store::kPageSize;
    if (placed.obstacle == Obstacle::kChanging) return Outcome::kAgain;
    if (placed.obstacle == Obstacle::kEnded) {
      ended_ = true;
      return Outcome::kDone;
    }
    if (placed.obstacle == Obstacle::kFailed) {
      ::usleep(10'000);  // no memory for it just now: the process waits as it would for its own
      return Outcome::kAgain;
    }
  }
  return Outcome::kDone;
}

LazyPagesMemory::Outcome LazyPagesMemory::supply(size_t block) {
  if (ended() || missing(block) == 0) return Outcome::kDone;
  thread_local std::vector<std::byte> buffer(store::kBlockSize);
  const Result<size_t> read = image_.read_block(block, buffer);
  std::shared_lock lock(mutex_);
  const uint16_t pages = missing(block);
  if (!read) {
    if (pages != 0) {
      std::lock_guard note(problems_mutex_);
      problems_.push_back(read.error().text());
    }
    return refuse(block, pages);
  }
  return put_bytes(block, image_.blocks()[block], pages, buffer);
}

/// Under the shared lock. `bytes`: as `read_block` gives them.
LazyPagesMemory::Outcome LazyPagesMemory::put_bytes(size_t block, const store::ImageReader::ResolvedBlock& about,
                                                    uint16_t pages, ByteSpan bytes) {
  return for_each_run(about.address, pages, [&](uint64_t target, unsigned page, unsigned count) {
    return put(block, target, page, count, [&](uint64_t to, unsigned first, unsigned n) {
      const unsigned rank =
          static_cast<unsigned>(std::popcount(static_cast<uint16_t>(about.data_mask & mask_of(0, first))));
      return proc::copy_missing(userfault_.get(), to, bytes.subspan(rank * store::kPageSize, n * store::kPageSize));
    });
  });
}

/// Its bytes cannot be read: nobody gets others instead.
LazyPagesMemory::Outcome LazyPagesMemory::refuse(size_t block, uint16_t pages) {
  return for_each_run(image_.blocks()[block].address, pages, [&](uint64_t target, unsigned page, unsigned count) {
    if (!can_poison_) {
      if (pid_ > 0) ::kill(pid_, SIGKILL);
      must_stay_ = true;
      return Outcome::kDone;
    }
    return put(block, target, page, count, [&](uint64_t at, unsigned, unsigned n) {
      return proc::poison_missing(userfault_.get(), at, n * store::kPageSize);
    });
  });
}

/// A page that was never more than zeros, or is not any more. Under the shared lock.
LazyPagesMemory::Outcome LazyPagesMemory::put_nothing(const proc::FaultMessage& fault) {
  const Placed placed = fault.write ? proc::copy_missing(userfault_.get(), fault.start, kZeros)
                                    : proc::zero_missing(userfault_.get(), fault.start, store::kPageSize);
  if (placed.obstacle == Obstacle::kChanging) return Outcome::kAgain;
  if (placed.obstacle == Obstacle::kEnded) ended_ = true;
  if (placed.obstacle != Obstacle::kFailed) return Outcome::kDone;
  ::usleep(10'000);
  return Outcome::kAgain;
}

Result<void> LazyPagesMemory::begin_to_run() {
  runs_ = true;
  return too_early_ ? Result<void>(*too_early_) : Result<void>();
}

/// Its bytes cannot be read, and the image's pages are not loaded: it gets none, or, before it runs, any.
LazyPagesMemory::Outcome LazyPagesMemory::fail_early(const proc::FaultMessage& fault, Error error) {
  std::shared_lock lock(mutex_);
  if (!runs_) {
    if (!too_early_) too_early_ = std::move(error);
    if (put_nothing(fault) == Outcome::kAgain) return Outcome::kAgain;
  } else if (can_poison_) {
    const Placed placed = proc::poison_missing(userfault_.get(), fault.start, store::kPageSize);
    if (placed.obstacle == Obstacle::kChanging) return Outcome::kAgain;
    std::lock_guard note(problems_mutex_);
    problems_.push_back(error.text());
  } else {
    ::kill(pid_ > 0 ? pid_ : fault.thread, SIGKILL);
    return Outcome::kDone;
  }
  proc::wake(userfault_.get(), fault.start, store::kPageSize);
  return Outcome::kDone;
}

/// While the image's pages are not all loaded.
LazyPagesMemory::Outcome LazyPagesMemory::answer_early(const proc::FaultMessage& fault) {
  thread_local std::vector<std::byte> buffer(store::kBlockSize);
  std::optional<uint64_t> source;
  {
    std::shared_lock lock(mutex_);
    source = places_.source_of(fault.start);
  }
  store::ImageReader::ResolvedBlock block;
  if (source) {
    const Result<size_t> read = image_.read_block_at(*source & ~(store::kBlockSize - 1), block, buffer);
    if (!read) return fail_early(fault, read.error());
  }
  std::shared_lock lock(mutex_);
  if (places_.source_of(fault.start) != source) return Outcome::kAgain;
  const bool has_bytes = source && (block.data_mask >> (*source % store::kBlockSize / store::kPageSize) & 1) != 0;
  const Outcome outcome = has_bytes ? put_bytes(kNotLoaded, block, block.data_mask, buffer) : put_nothing(fault);
  if (outcome == Outcome::kDone) proc::wake(userfault_.get(), fault.start, store::kPageSize);
  return outcome;
}

LazyPagesMemory::Outcome LazyPagesMemory::answer(const proc::FaultMessage& fault) {
  if (!loaded_.load(std::memory_order_acquire)) return answer_early(fault);
  for (;;) {
    size_t block = last_;
    {
      std::shared_lock lock(mutex_);
      const auto source = places_.source_of(fault.start);
      if (!source || !is_wanted(*source)) {
        if (put_nothing(fault) == Outcome::kAgain) return Outcome::kAgain;
        break;
      }
      block = block_at(*source);
    }
    if (supply(block) == Outcome::kAgain) return Outcome::kAgain;
    if (can_poison_ || ended() || missing(block) == 0) break;
    if (pid_ == 0) ::kill(fault.thread, SIGKILL);  // its bytes cannot be read
    return Outcome::kDone;
  }
  proc::wake(userfault_.get(), fault.start, store::kPageSize);
  return Outcome::kDone;
}

void LazyPagesMemory::apply(const proc::FaultMessage& message) {
  using Kind = proc::FaultMessage::Kind;
  if (message.kind == Kind::kMove) places_.move(message.start, message.to, message.end - message.start);
  if (message.kind == Kind::kRemove) places_.remove(message.start, message.end);
  if (message.kind != Kind::kUnmap) return;
  // Another thread may have moved a mapping to where this one was, and its report came first.
  if (pid_ > 0 && places_.has_moved(message.start, message.end)) {
    auto maps = proc::read_maps(pid_, false);
    auto is_there = [&](const proc::Vma& vma) { return vma.start < message.end && vma.end > message.start; };
    if (maps && std::any_of(maps->begin(), maps->end(), is_there)) return;
  }
  places_.remove(message.start, message.end);
}

void LazyPagesMemory::look_for_end() {
  constexpr uint64_t kNeverWatched = 0x10000;  // too low for a mapping, high enough for the kernel's checks
  if (proc::zero_missing(userfault_.get(), kNeverWatched, store::kPageSize).obstacle == Obstacle::kEnded) ended_ = true;
}

bool LazyPagesMemory::has_problems() {
  std::lock_guard lock(problems_mutex_);
  return !problems_.empty();
}

std::vector<std::string> LazyPagesMemory::take_problems() {
  std::lock_guard lock(problems_mutex_);
  return std::exchange(problems_, {});
}

}  // namespace ckpt::restore
