#include <doctest/doctest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <random>

#include "lib/memory/page_plan.h"
#include "lib/store/image.h"
#include "tests/support/sanitized.h"
#include "tests/support/skip.h"

using namespace ckpt;
using namespace ckpt::capture;
using proc::PageRegion;
using store::MappingKind;
using store::MemoryMap;
namespace page = proc::page;

namespace {

constexpr uint64_t kPage = store::kPageSize, kBase = 0x10000000;

MemoryMap mapping(uint64_t first, uint64_t pages, MappingKind kind = MappingKind::kAnonymous,
                  store::VmFlags flags = {}) {
  MemoryMap out;
  out.start = kBase + first * kPage, out.end = out.start + pages * kPage;
  out.kind = kind, out.flags = std::move(flags);
  return out;
}
PageRegion region(uint64_t first, uint64_t pages, uint64_t categories) {
  return {kBase + first * kPage, kBase + (first + pages) * kPage, categories};
}

/// Page numbers, counted from kBase, of one sort of mask.
std::vector<uint64_t> pages_of(const std::vector<BlockPlan>& blocks, uint16_t BlockPlan::*mask) {
  std::vector<uint64_t> out;
  for (const BlockPlan& block : blocks) {
    for (uint64_t i = 0; i < store::kBlockPages; ++i) {
      if ((block.*mask >> i & 1) != 0) out.push_back((block.address - kBase) / kPage + i);
    }
  }
  return out;
}
using Numbers = std::vector<uint64_t>;

}  // namespace

TEST_CASE("page plan: every sort of page goes where it belongs") {
  std::vector<MemoryMap> maps = {mapping(0, 20), mapping(20, 4, MappingKind::kPrivateFile),
                                 mapping(24, 4, MappingKind::kSharedFile),
                                 mapping(28, 4, MappingKind::kAnonymous, {"dc"})};
  const std::vector<PageRegion> found = {
      region(1, 2, page::kPresent | page::kWritten), region(4, 1, page::kPresent | page::kWritten | page::kZero),
      region(6, 1, page::kGuard),                    region(8, 1, page::kSwapped),
      region(10, 1, 0),                              region(19, 2, page::kPresent | page::kWritten),
      region(21, 1, page::kPresent | page::kFile),   region(24, 2, page::kPresent | page::kWritten),
      region(29, 1, page::kPresent | page::kWritten)};
  SUBCASE("all that is populated") {
    const PagePlan plan = plan_data(found, ScanFor::kPopulated, maps);
    CHECK(pages_of(plan.snapshot, &BlockPlan::data_mask) == Numbers{1, 2, 8, 19, 20});
    CHECK(pages_of(plan.live, &BlockPlan::data_mask) == Numbers{29});
    CHECK(plan.pages_data == 6);
    CHECK(plan.pages_zero == 1);
    REQUIRE(maps[0].guards.size() == 1);
    CHECK(maps[0].guards[0].first == kBase + 6 * kPage);
  }
  SUBCASE("changes: what is only swapped out has not changed") {
    const PagePlan plan = plan_data(found, ScanFor::kChanges, maps);
    CHECK(pages_of(plan.snapshot, &BlockPlan::data_mask) == Numbers{1, 2, 19, 20});
    (void)plan_data(found, ScanFor::kChanges, maps);
    CHECK(maps[0].guards.size() == 1);  // not counted twice
    CHECK(pages_of(plan_unchanged(found, maps), &BlockPlan::parent_mask) ==
          Numbers{0, 3, 5, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 22, 23, 28, 30, 31});
  }
}

TEST_CASE("page plan: what did not change is taken from before") {
  std::mt19937_64 rng(7);
  for (int run = 0; run < 300; ++run) {
    std::map<uint64_t, int> truth;  // 1: changed, 2: only swapped
    std::vector<PageRegion> changes;
    for (uint64_t at = rng() % 4; at < 60; at += rng() % 7) {
      const uint64_t size = 1 + rng() % 5, swapped = rng() % 4 == 0 ? 1 : 0;
      changes.push_back(region(at, size, swapped != 0 ? page::kSwapped : page::kPresent | page::kWritten));
      for (uint64_t i = at; i < at + size; ++i) truth[i] = swapped != 0 ? 2 : 1;
      at += size;
    }
    std::vector<BlockPlan> blocks;
    for (uint64_t block = 0; block < 5; ++block)
      blocks.push_back({kBase + block * store::kBlockSize, static_cast<uint16_t>(rng()), 0});
    const Numbers wanted = pages_of(blocks, &BlockPlan::data_mask);
    keep_unchanged(changes, blocks);
    Numbers data, same;
    for (uint64_t i : wanted) (truth[i] == 1 ? data : same).push_back(i);
    CHECK(pages_of(blocks, &BlockPlan::data_mask) == data);
    CHECK(pages_of(blocks, &BlockPlan::parent_mask) == same);
    CHECK(count_unchanged(blocks) == same.size());
  }
}

TEST_CASE("page plan: regions that were missed are added once") {
  std::mt19937_64 rng(11);
  auto random_regions = [&](uint64_t categories) {
    std::vector<PageRegion> out;
    for (uint64_t at = rng() % 5; at < 50; at += 1 + rng() % 6) {
      out.push_back(region(at, 1 + rng() % 4, categories));
      at += 4;
    }
    return out;
  };
  for (int run = 0; run < 300; ++run) {
    std::vector<PageRegion> changes = random_regions(page::kPresent), more = random_regions(page::kSwapped);
    std::map<uint64_t, uint64_t> truth;
    for (const auto* list : {&more, &changes}) {
      for (const PageRegion& r : *list) {
        for (uint64_t at = r.start; at < r.end; at += kPage) truth[at] = r.categories;
      }
    }
    unite(changes, more);
    std::map<uint64_t, uint64_t> got;
    uint64_t last = 0;
    for (const PageRegion& r : changes) {
      CHECK(r.start >= last);
      last = r.end;
      for (uint64_t at = r.start; at < r.end; at += kPage) got[at] = r.categories;
    }
    CHECK(got == truth);
  }
}

TEST_CASE("page plan: address space that is reserved and never touched takes no time to scan") {
  if (ckpt::test::kThreadSanitized) return ckpt::test::skip("the thread sanitizer has most addresses for itself");
  uint64_t size = uint64_t{64} << 40;
  void* at = MAP_FAILED;
  for (; size > uint64_t{1} << 40 && at == MAP_FAILED; size /= 2)
    at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(at != MAP_FAILED);
  size *= 2;
  ::madvise(at, size, MADV_NOHUGEPAGE);
  const auto start = reinterpret_cast<uint64_t>(at);
  const std::vector<uint64_t> touched = {0, 2 * store::kPageSize, size / 2 - store::kPageSize,
                                         size / 3 / store::kPageSize * store::kPageSize, size - store::kPageSize};
  for (uint64_t offset : touched) *reinterpret_cast<volatile char*>(start + offset) = 1;
  auto pagemap = proc::Pagemap::open(::getpid());
  REQUIRE(pagemap);
  if (!pagemap->can_scan()) return;
  MemoryMap map;
  map.start = start, map.end = start + size;
  WorkerPool workers(2);
  for (WorkerPool* pool : {static_cast<WorkerPool*>(nullptr), &workers}) {
    for (ScanFor what : {ScanFor::kPopulated, ScanFor::kChanges}) {
      const std::clock_t before = std::clock();  // of processors: the machine may be busy
      auto found = scan_private(*pagemap, {map}, what, pool);
      CHECK(std::clock() - before < CLOCKS_PER_SEC / 20);  // 262,144 pieces of 256 MiB take ten times as long
      REQUIRE(found);
      std::vector<MemoryMap> maps = {map};
      CHECK(plan_data(*found, what, maps).pages_data == touched.size());
      CHECK(std::is_sorted(found->begin(), found->end(), [](const PageRegion& a, const PageRegion& b) {
        return a.end <= b.start && a.start < b.start;
      }));
      if (what == ScanFor::kChanges) CHECK(count_unchanged(plan_unchanged(*found, maps)) == 0);
    }
  }
  ::munmap(at, size);
}

TEST_CASE("page plan: without PAGEMAP_SCAN (before Linux 6.7) the holes between mappings are not read") {
  if (ckpt::test::kThreadSanitized) return ckpt::test::skip("the thread sanitizer has most addresses for itself");
  const auto pagemap = proc::Pagemap::open(::getpid(), true);
  REQUIRE(pagemap);
  REQUIRE_FALSE(pagemap->can_scan());
  // As a heap and what mmap places: tens of terabytes apart, and next to each other in the list. The address sanitizer
  // leaves this place free.
  void* const low = ::mmap(reinterpret_cast<void*>(uint64_t{0x2000} << 32), 2 * kPage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const high = ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE((low != MAP_FAILED && high != MAP_FAILED && low < high));
  std::vector<MemoryMap> maps(2);
  std::vector<PageRegion> expected;
  for (size_t i = 0; i < maps.size(); ++i) {
    auto* at = static_cast<char*>(i == 0 ? low : high) + kPage;
    *at = 1;
    maps[i].start = reinterpret_cast<uint64_t>(at) - kPage, maps[i].end = maps[i].start + 2 * kPage;
    expected.push_back({maps[i].start + kPage, maps[i].end, 0});
  }
  auto found = scan_private(*pagemap, maps, ScanFor::kPopulated, nullptr);
  REQUIRE(found);
  REQUIRE(found->size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(((*found)[i].start == expected[i].start && (*found)[i].end == expected[i].end));
  ::munmap(low, 2 * kPage), ::munmap(high, 2 * kPage);
}
