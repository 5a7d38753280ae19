#include "lib/repository/usage.h"

#include <algorithm>
#include <tuple>

namespace ckpt::repository {

ChunkNumbers::ChunkNumbers(const Index& index) : index_(index) {
  for (const KnownPack& pack : index.packs()) numbers_.emplace_back(pack.table.ids.size());
}

uint32_t* ChunkNumbers::of(const Id& id) {
  uint32_t* out = nullptr;
  index_.find_all(id, [&](const ChunkPlace& place) {
    out = &numbers_[place.pack][place.chunk];
    return false;
  });
  return out;
}

Result<void> for_each_needed(Repository& repository, const Ref& ref,
                             const std::function<Result<void>(const Id&)>& each) {
  const std::string subject = repository.backend().subject(in_folder(kImages, ref.name));
  ChunkReader reader(repository);
  CKPT_TRY(
      read_list(as_bytes(ref.tree), ref.tree_bytes, subject, [&](const Extent& extent) { return each(extent.id); }));
  CKPT_TRY_ASSIGN(const std::vector<Entry> entries, read_tree(ref, reader, subject));
  for (const Entry& entry : entries) {
    if (entry.type != Entry::Type::kFile) continue;
    CKPT_TRY(repository.cancel().check());
    CKPT_TRY(for_each_chunk(entry, reader, subject, [&](const Extent& extent, bool) {
      return extent.id.empty() ? Result<void>() : each(extent.id);
    }));
  }
  return {};
}

Result<void> mark_needed(Repository& repository, const std::vector<Ref>& refs, ChunkNumbers& marks) {
  for (const Ref& ref : refs) {
    auto done = for_each_needed(repository, ref, [&](const Id& id) -> Result<void> {
      if (uint32_t* number = marks.of(id)) *number = 1;
      return {};
    });
    if (!done && done.error().code == Code::kCorrupt)
      return Error(std::move(done).error())
          .with_hint("nobody can say what " + ref.name + " needs: ckpt rm, or push it again with --force");
    CKPT_TRY(std::move(done));
  }
  return {};
}

uint64_t stored_bytes(const PackTable& table, size_t chunk) {
  const Group& group = table.group_of(chunk);
  return uint64_t{table.lengths[chunk]} * group.stored / group.length;
}

namespace {

Result<StoreUsage> measure_once(Repository& repository) {
  StoreUsage out;
  CKPT_TRY(repository.load());
  CKPT_TRY_ASSIGN(std::vector<Ref> refs, repository.refs(&out.damaged));
  std::sort(refs.begin(), refs.end(),
            [](const Ref& a, const Ref& b) { return std::tie(a.created, a.name) < std::tie(b.created, b.name); });
  // 0: nobody needs it; n: name n - 1 alone; kShared: several.
  constexpr uint32_t kShared = ~0u;
  ChunkNumbers owners(repository.index());
  for (size_t i = 0; i < refs.size(); ++i) {
    const auto own = static_cast<uint32_t>(i + 1);
    NameUsage usage;
    auto done = for_each_needed(repository, refs[i], [&](const Id& id) -> Result<void> {
      if (uint32_t* owner = owners.of(id)) *owner = *owner == 0 || *owner == own ? own : kShared;
      return {};
    });
    if (!done && done.error().code != Code::kCorrupt) return std::move(done).error();
    if (!done) usage.damage = std::move(done).error();
    out.bytes += refs[i].bytes;
    usage.ref = std::move(refs[i]);
    out.names.push_back(std::move(usage));
  }
  for (const KnownPack& pack : repository.index().packs()) {
    out.stored += pack.size;
    uint64_t needed = 0;
    for (size_t chunk = 0; chunk < pack.table.ids.size(); ++chunk) {
      // Of a chunk that lies in two packs, the second copy is needed by nobody.
      const Id& id = pack.table.ids[chunk];
      const uint32_t owner = *owners.of(id);
      const auto place = repository.index().find(id);
      const bool first = &repository.index().packs()[place->pack] == &pack && place->chunk == chunk;
      if (owner == 0 || !first) continue;
      const uint64_t bytes = stored_bytes(pack.table, chunk);
      needed += bytes;
      if (owner != kShared) out.names[owner - 1].alone += bytes;
    }
    uint64_t groups = 0;
    for (const Group& group : pack.table.groups) groups += group.stored;
    out.unneeded += groups - std::min(groups, needed);
  }
  return out;
}

}  // namespace

Result<StoreUsage> measure_usage(Repository& repository) {
  return unless_moved([&] { return measure_once(repository); });
}

}  // namespace ckpt::repository
