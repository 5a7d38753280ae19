#include "lib/memory/sharing.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>

#include "lib/store/block_content.h"
#include "lib/store/chunk.h"

namespace ckpt::restore {

namespace {

using store::ImageReader;
using store::MappingKind;
using store::MemoryMap;
using store::ProcessImage;

/// A fork copies it, and what it is made like is told by `alike`.
bool is_inheritable(const ProcessImage& process, const MemoryMap& map) {
  const bool is_private = map.kind == MappingKind::kAnonymous || map.kind == MappingKind::kPrivateFile;
  auto has_policy = [&](const store::MappingPolicy& policy) { return policy.start == map.start; };
  return is_private && !has_flag(map, "dc") && !has_flag(map, "wf") &&
         std::none_of(process.policies.begin(), process.policies.end(), has_policy);
}

/// Parts of the two would be made by the same calls, and the kernel would join them.
bool alike(const MemoryMap& a, const MemoryMap& b) {
  if (a.kind != b.kind || a.prot != b.prot || a.file != b.file || a.shared_memory != b.shared_memory) return false;
  if (a.kind != MappingKind::kAnonymous && a.kind != MappingKind::kPrivateFile) return false;
  if (a.kind == MappingKind::kPrivateFile && a.start - a.file_offset != b.start - b.file_offset) return false;
  for (std::string_view flag : {"nr", "gd", "dd", "hg", "nh", "mg", "rr", "sr"}) {
    if (has_flag(a, flag) != has_flag(b, flag)) return false;
  }
  auto given_name = [](const MemoryMap& map) {
    return map.name.rfind("[anon", 0) == 0 ? std::string_view(map.name) : std::string_view();
  };
  return given_name(a) == given_name(b);
}

/// Mappings by address, put together from those of several processes: who comes first decides.
class Layout {
 public:
  explicit Layout(const ProcessImage& first) {
    std::copy_if(first.maps.begin(), first.maps.end(), std::back_inserter(maps_),
                 [](const MemoryMap& map) { return map.kind == MappingKind::kVdso; });
  }

  /// Does nothing where it overlaps one of another kind.
  void add(MemoryMap map) {
    auto first = std::lower_bound(maps_.begin(), maps_.end(), map.start,
                                  [](const MemoryMap& m, uint64_t start) { return m.end < start; });
    auto last = first;
    for (; last != maps_.end() && last->start <= map.end; ++last) {
      const bool overlaps = last->start < map.end && map.start < last->end;
      if (overlaps && !alike(*last, map)) return;
    }
    // Those that only touch it stay apart unless they are alike.
    if (first != last && !alike(*first, map)) ++first;
    if (first != last && !alike(*std::prev(last), map)) --last;
    if (first != last) {
      const uint64_t start = std::min(map.start, first->start);
      map.file_offset -= map.kind == MappingKind::kPrivateFile ? map.start - start : 0;
      map.start = start, map.end = std::max(map.end, std::prev(last)->end);
      first = maps_.erase(first, last);
    }
    map.guards.clear();
    maps_.insert(first, std::move(map));
  }

  std::vector<MemoryMap> take() { return std::move(maps_); }

 private:
  std::vector<MemoryMap> maps_;
};

/// One of those who are asked what to hold: `party` is the forking process itself, or its child from which this one
/// descends.
struct Member {
  const ProcessImage* process;
  size_t party;
};

std::vector<Member> members_of(const store::TreeImage& tree, size_t root) {
  std::vector<Member> out = {{&tree.processes[root], root}};
  std::map<int, size_t> party = {{tree.processes[root].pid, root}};
  for (size_t i = root + 1; i < tree.processes.size(); ++i) {
    const ProcessImage& process = tree.processes[i];
    auto parent = party.find(process.parent_pid);
    if (parent == party.end()) continue;
    const size_t mine = process.parent_pid == tree.processes[root].pid ? i : parent->second;
    party.emplace(process.pid, mine);
    if (!process.zombie && process.memory_of < 0) out.push_back({&process, mine});
  }
  return out;
}

/// A block that somebody has in a mapping which can be inherited.
struct Vote {
  uint64_t address;
  size_t party, block;
};

void add_votes(const ImageReader& image, const Member& member, std::vector<Vote>& votes) {
  const auto& maps = member.process->maps;
  const auto [first, last] = image.blocks_of(member.process->space);
  std::vector<bool> counts(maps.size());
  for (size_t i = 0; i < maps.size(); ++i) counts[i] = is_inheritable(*member.process, maps[i]);
  size_t hint = 0;
  for (size_t i = first; i < last; ++i) {
    bool has_pages = false;
    for_each_part(maps, image.blocks()[i], hint, [&](uint16_t part, size_t map) {
      has_pages |= counts[map] && pages_to_write(image.blocks()[i], part, maps[map]) != 0;
    });
    if (has_pages && image.blocks()[i].data_mask != 0)
      votes.push_back({address_of(image.blocks()[i]), member.party, i});
  }
}

using Content = std::array<uint64_t, 3>;

Content masks_and_content(const ImageReader& image, size_t block) {
  const Hash128 hash = store::content_of(image, block);
  const ImageReader::ResolvedBlock& masks = image.blocks()[block];
  return {hash.lo, hash.hi, uint64_t{masks.data_mask} << 16 | masks.zero_mask};
}

/// The block that most have, of those among whom there is a tie the first one's.
size_t elect(const ImageReader& image, std::span<const Vote> votes) {
  std::map<Content, std::pair<size_t, size_t>> count;  // how many, the first one's block
  size_t best = 0;
  for (const Vote& vote : votes)
    best = std::max(best, ++count.try_emplace(masks_and_content(image, vote.block), 0, vote.block).first->second.first);
  for (const Vote& vote : votes) {
    const auto& [many, first] = count.at(masks_and_content(image, vote.block));
    if (many == best) return first;
  }
  return votes[0].block;
}

/// The blocks to hold, by address.
std::vector<size_t> blocks_to_share(const ImageReader& image, const std::vector<Member>& members) {
  std::vector<Vote> votes;
  for (const Member& member : members) add_votes(image, member, votes);
  std::stable_sort(votes.begin(), votes.end(), [](const Vote& a, const Vote& b) { return a.address < b.address; });
  std::vector<size_t> out;
  for (auto first = votes.begin(); first != votes.end();) {
    const auto last =
        std::find_if(first, votes.end(), [&](const Vote& vote) { return vote.address != first->address; });
    const bool several = std::any_of(first, last, [&](const Vote& vote) { return vote.party != first->party; });
    if (several) out.push_back(elect(image, {first, last}));
    first = last;
  }
  return out;
}

/// The first of the blocks (by address) that has pages at or above `address`.
std::span<const size_t>::iterator first_from(const ImageReader& image, std::span<const size_t> blocks,
                                             uint64_t address) {
  auto before = [&](size_t block, uint64_t a) { return address_of(image.blocks()[block]) + store::kBlockSize <= a; };
  return std::lower_bound(blocks.begin(), blocks.end(), address, before);
}

/// Reads a block's pages to their places in `room`, zeros where there are none.
Result<void> read_spread(const ImageReader& image, size_t block, MutableByteSpan room) {
  thread_local std::vector<std::byte> packed(store::kBlockSize);
  CKPT_TRY(image.read_block(block, packed));
  const uint16_t mask = image.blocks()[block].data_mask;
  for (unsigned page = 0; page < store::kBlockPages; ++page) {
    std::byte* to = room.data() + page * store::kPageSize;
    if ((mask >> page & 1) != 0)
      std::memcpy(to, packed.data() + store::page_rank(mask, page) * store::kPageSize, store::kPageSize);
    else std::memset(to, 0, store::kPageSize);
  }
  return {};
}

/// Whether two blocks have an equal page in some places.
Result<unsigned> count_equal(const ImageReader& image, size_t a, size_t b) {
  thread_local std::vector<std::byte> left(store::kBlockSize), right(store::kBlockSize);
  CKPT_TRY(read_spread(image, a, left));
  CKPT_TRY(read_spread(image, b, right));
  unsigned out = 0;
  for (unsigned rest = image.blocks()[a].data_mask & image.blocks()[b].data_mask; rest != 0; rest &= rest - 1) {
    const size_t at = static_cast<size_t>(__builtin_ctz(rest)) * store::kPageSize;
    out += std::memcmp(left.data() + at, right.data() + at, store::kPageSize) == 0 ? 1 : 0;
  }
  return out;
}

/// A page that is inherited and then written costs twice what a new one does: a sample tells whether enough are alike.
Result<bool> is_worth(const ImageReader& image, std::span<const size_t> own, const MemoryMap& map,
                      const HeldMemory& held) {
  constexpr size_t kSmall = 16, kSample = 16;
  std::vector<std::pair<size_t, size_t>> common;
  size_t equal = 0;
  for (auto at = first_from(image, own, map.start); at != own.end() && address_of(image.blocks()[*at]) < map.end;
       ++at) {
    const auto& block = image.blocks()[*at];
    const HeldPages theirs = pages_at(image, held, address_of(block));
    if ((theirs.mask & pages_to_write(block, part_of(map, block), map)) == 0) continue;
    common.emplace_back(*at, theirs.block);
    if (*at == theirs.block || masks_and_content(image, *at) == masks_and_content(image, theirs.block)) ++equal;
  }
  if (common.size() <= kSmall) return !common.empty();
  if (equal * 64 >= common.size()) return true;
  unsigned pages = 0;
  for (size_t i = 0; i < kSample; ++i) {
    const auto& [mine, theirs] = common[i * common.size() / kSample];
    CKPT_TRY_ASSIGN(unsigned same, count_equal(image, mine, theirs));
    pages += same;
  }
  return pages >= kSample;
}

}  // namespace

HeldPages pages_at(const ImageReader& image, const HeldMemory& held, uint64_t address) {
  const std::span<const size_t> all(held.blocks);
  const auto found = first_from(image, all, address);
  if (found == all.end() || address_of(image.blocks()[*found]) != address) return {};
  HeldPages out{*found, 0};
  const auto& block = image.blocks()[*found];
  auto map = std::partition_point(held.layout.maps.begin(), held.layout.maps.end(),
                                  [&](const MemoryMap& m) { return m.end <= address; });
  for (; map != held.layout.maps.end() && map->start < address + store::kBlockSize; ++map) {
    if (map->kind != MappingKind::kVdso)
      out.mask = static_cast<uint16_t>(out.mask | pages_to_write(block, part_of(*map, block), *map));
  }
  return out;
}

std::optional<HeldMemory> memory_to_share(const ImageReader& image, size_t process) {
  const store::TreeImage& tree = image.manifest().tree;
  const ProcessImage& own = tree.processes[process];
  const std::vector<Member> members = members_of(tree, process);
  if (own.zombie || own.memory_of >= 0 || members.size() < 2) return std::nullopt;
  HeldMemory out;
  out.blocks = blocks_to_share(image, members);
  const std::span<const size_t> blocks(out.blocks);
  Layout layout(own);
  for (const Member& member : members) {
    for (const MemoryMap& map : member.process->maps) {
      const auto at = first_from(image, blocks, map.start);
      const bool used = at != blocks.end() && address_of(image.blocks()[*at]) < map.end;
      if (used && is_inheritable(*member.process, map)) layout.add(map);
    }
  }
  out.layout.pid = own.pid, out.layout.space = own.space;
  out.layout.maps = layout.take();
  std::erase_if(out.blocks,
                [&](size_t block) { return pages_at(image, out, address_of(image.blocks()[block])).mask == 0; });
  if (out.blocks.empty()) return std::nullopt;
  return out;
}

Result<void> inherit(const ImageReader& image, const ProcessImage& process, std::span<const size_t> blocks,
                     const HeldMemory& held, MemoryPlan& plan) {
  for (size_t i = 0; i < process.maps.size(); ++i) {
    const MemoryMap& map = process.maps[i];
    if ((plan.supply[i] != Supply::kWrite && plan.supply[i] != Supply::kCopy) || !is_inheritable(process, map))
      continue;
    auto there = std::partition_point(held.layout.maps.begin(), held.layout.maps.end(),
                                      [&](const MemoryMap& m) { return m.end <= map.start; });
    if (there == held.layout.maps.end() || there->start > map.start || there->end < map.end || !alike(*there, map))
      continue;
    CKPT_TRY_ASSIGN(const bool worth, is_worth(image, blocks, map, held));
    if (worth) plan.supply[i] = Supply::kInherit;
  }
  return {};
}

std::vector<Range> pages_to_drop(const ImageReader& image, const ProcessImage& process, std::span<const size_t> blocks,
                                 const HeldMemory& held, const MemoryPlan& plan) {
  std::vector<Range> out;
  size_t hint = 0;
  for (size_t block : held.blocks) {
    const uint64_t address = address_of(image.blocks()[block]);
    const auto own = first_from(image, blocks, address);
    const bool has_own = own != blocks.end() && address_of(image.blocks()[*own]) == address;
    const uint16_t there = pages_at(image, held, address).mask;
    uint16_t drop = 0;
    for_each_part(process.maps, image.blocks()[block], hint, [&](uint16_t part, size_t map) {
      if (plan.supply[map] != Supply::kInherit) return;
      const uint16_t wanted = has_own ? pages_to_write(image.blocks()[*own], part, process.maps[map]) : uint16_t{0};
      drop = static_cast<uint16_t>(drop | (there & part & ~wanted));
    });
    for (unsigned page = 0; page < store::kBlockPages; ++page) {
      if ((drop >> page & 1) == 0) continue;
      const uint64_t at = address + page * store::kPageSize;
      if (!out.empty() && out.back().second == at) out.back().second += store::kPageSize;
      else out.emplace_back(at, at + store::kPageSize);
    }
  }
  return out;
}

bool is_there(const ImageReader& image, const HeldMemory& held, size_t block, uint16_t pages) {
  const HeldPages there = pages_at(image, held, address_of(image.blocks()[block]));
  return (pages & ~there.mask) == 0 &&
         (there.block == block || masks_and_content(image, block) == masks_and_content(image, there.block));
}

Result<uint16_t> pages_that_differ(const ImageReader& image, const HeldMemory& held, size_t block, uint16_t pages,
                                   ByteSpan data) {
  const auto& own = image.blocks()[block];
  const HeldPages there = pages_at(image, held, address_of(own));
  if ((there.mask & pages) == 0) return pages;
  uint16_t out = static_cast<uint16_t>(pages & ~there.mask);
  if (there.block == block || masks_and_content(image, block) == masks_and_content(image, there.block)) return out;
  thread_local std::vector<std::byte> room(store::kBlockSize);
  CKPT_TRY(read_spread(image, there.block, room));
  static constexpr std::array<std::byte, store::kPageSize> kZeros{};
  for (unsigned rest = pages & there.mask; rest != 0; rest &= rest - 1) {
    const auto page = static_cast<unsigned>(__builtin_ctz(rest));
    const bool has_data = (own.data_mask >> page & 1) != 0;
    const std::byte* mine =
        has_data ? data.data() + store::page_rank(own.data_mask, page) * store::kPageSize : kZeros.data();
    if (std::memcmp(mine, room.data() + page * store::kPageSize, store::kPageSize) != 0)
      out = static_cast<uint16_t>(out | 1u << page);
  }
  return out;
}

}  // namespace ckpt::restore
