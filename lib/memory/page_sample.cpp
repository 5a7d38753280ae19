#include "lib/memory/page_sample.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace ckpt::capture {

namespace {

using store::kBlockPages;
using store::kPageSize;

/// Calls `visit(i)` for each page of a mask.
template <class Visit>
void each_page(uint16_t mask, Visit visit) {
  for (unsigned i = 0; i < kBlockPages; ++i) {
    if ((mask >> i & 1) != 0) visit(i);
  }
}

/// Which mappings of a process hide a file, by memory space.
class FileMappings {
 public:
  explicit FileMappings(const store::TreeImage& tree) {
    for (const store::ProcessImage& process : tree.processes) {
      if (process.space >= 0) maps_[static_cast<uint64_t>(process.space)] = &process.maps;
    }
  }
  bool has(uint64_t address) const {
    const auto of_space = maps_.find(address >> store::kSpaceShift);
    if (of_space == maps_.end()) return false;
    const uint64_t at = address & ((uint64_t{1} << store::kSpaceShift) - 1);
    auto map = std::upper_bound(of_space->second->begin(), of_space->second->end(), at,
                                [](uint64_t a, const store::MemoryMap& one) { return a < one.start; });
    return map != of_space->second->begin() && (--map)->end > at && map->kind == store::MappingKind::kPrivateFile;
  }

 private:
  std::map<uint64_t, const std::vector<store::MemoryMap>*> maps_;
};

/// One block of an image, page by page.
class StoredBlock {
 public:
  Result<void> load(const store::ImageReader& image, uint64_t address) {
    const auto& blocks = image.blocks();
    const auto at = std::lower_bound(blocks.begin(), blocks.end(), address,
                                     [](const auto& block, uint64_t wanted) { return block.address < wanted; });
    masks_ = {};
    if (at == blocks.end() || at->address != address) return {};
    masks_ = *at;
    CKPT_TRY(image.read_block(static_cast<size_t>(at - blocks.begin()), data_));
    return {};
  }
  bool tells(unsigned page) const { return ((masks_.data_mask | masks_.zero_mask) >> page & 1) != 0; }
  Hash128 hash(unsigned page) const {
    static constexpr std::array<std::byte, kPageSize> kZeros{};
    if ((masks_.data_mask >> page & 1) == 0) return xxh3_128(kZeros);
    const auto before = static_cast<uint16_t>(masks_.data_mask & ((1u << page) - 1));
    return xxh3_128(ByteSpan(data_).subspan(static_cast<size_t>(std::popcount(before)) * kPageSize, kPageSize));
  }

 private:
  store::ImageReader::ResolvedBlock masks_;
  std::vector<std::byte> data_ = std::vector<std::byte>(store::kBlockSize);
};

constexpr size_t kBlocksAtOnce = 64;

}  // namespace

std::vector<BlockPlan> PageSample::draw(const std::vector<BlockPlan>& unchanged) {
  std::vector<BlockPlan> out;
  std::bernoulli_distribution is_drawn(part_);
  std::vector<const BlockPlan*> all;
  for (const BlockPlan& block : unchanged) {
    if (block.parent_mask == 0) continue;
    all.push_back(&block);
    if (is_drawn(random_)) out.push_back({block.address, block.parent_mask, 0});
  }
  if (!out.empty() || all.empty()) return out;
  const BlockPlan& one = *all[std::uniform_int_distribution<size_t>(0, all.size() - 1)(random_)];
  out.push_back({one.address, one.parent_mask, 0});
  return out;
}

void PageSample::read(SpaceBlocks unchanged, WorkerPool* pool) {
  unchanged.blocks = draw(unchanged.blocks);
  const size_t before = drawn_.size();
  size_t hashes = hashes_.size();
  for (const BlockPlan& block : unchanged.blocks) {
    drawn_.push_back({store::space_base(unchanged.space) + block.address, block.data_mask, hashes});
    hashes += static_cast<size_t>(std::popcount(block.data_mask));
  }
  hashes_.resize(hashes);
  read_each_block(unchanged, pool, [&](size_t i, ByteSpan data) {
    Drawn& drawn = drawn_[before + i];
    if (data.empty()) drawn.mask = 0;
    for (size_t page = 0; page * kPageSize < data.size(); ++page)
      hashes_[drawn.first + page] = xxh3_128(data.subspan(page * kPageSize, kPageSize));
  });
}

Result<PageSample::Compared> PageSample::compare(const store::ImageReader& image, unsigned workers) const {
  const FileMappings files(image.manifest().tree);
  Compared out;
  std::mutex mutex;
  std::optional<WorkerPool> pool;
  if (drawn_.size() > kBlocksAtOnce) make_helpers(workers, pool);
  const size_t jobs = (drawn_.size() + kBlocksAtOnce - 1) / kBlocksAtOnce;
  CKPT_TRY(side_by_side(pool ? &*pool : nullptr, jobs, [&](size_t job) -> Result<void> {
    Compared found;
    StoredBlock stored;
    for (size_t i = job * kBlocksAtOnce; i < std::min(drawn_.size(), (job + 1) * kBlocksAtOnce); ++i) {
      const Drawn& drawn = drawn_[i];
      if (drawn.mask == 0) continue;
      CKPT_TRY(stored.load(image, drawn.address));
      const Hash128* hash = &hashes_[drawn.first];
      each_page(drawn.mask, [&](unsigned page) {
        const Hash128& now = *hash++;
        const uint64_t address = drawn.address + page * kPageSize;
        if (!stored.tells(page) && files.has(address)) return;
        ++found.pages;
        if (stored.hash(page) == now) return;
        if (found.different++ == 0) found.first = address;
      });
    }
    std::lock_guard lock(mutex);
    if (found.different > 0) out.first = out.different == 0 ? found.first : std::min(out.first, found.first);
    out.pages += found.pages, out.different += found.different;
    return {};
  }));
  return out;
}

}  // namespace ckpt::capture
