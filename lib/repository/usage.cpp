#include "lib/repository/usage.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <tuple>

#include "lib/base/checked.h"
#include "lib/base/worker_pool.h"

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

namespace {

constexpr unsigned kIndexReaders = 8;
constexpr size_t kListsAtOnce = 8;

class Needs {
 public:
  Needs(Repository& repository, const std::vector<Ref>& refs, std::vector<std::optional<Error>>& damage,
        const std::function<void(size_t, const Id&)>& each, const std::function<Result<void>()>& go_on)
      : repository_(repository), refs_(refs), damage_(damage), each_(each), go_on_(go_on), readers_(repository) {}

  Result<void> run() {
    damage_.assign(refs_.size(), std::nullopt);
    std::optional<WorkerPool> pool;
    make_helpers(kIndexReaders, pool);
    CKPT_TRY(side_by_side(pool ? &*pool : nullptr, refs_.size(), [&](size_t name) -> Result<void> {
      CKPT_TRY(check());
      return judge(name, readers_.with([&](ChunkReader& reader) { return read_tree_of(name, reader); }));
    }));
    const size_t batches = (lists_.size() + kListsAtOnce - 1) / kListsAtOnce;
    return side_by_side(pool ? &*pool : nullptr, batches, [&](size_t batch) -> Result<void> {
      CKPT_TRY(check());
      return readers_.with([&](ChunkReader& reader) -> Result<void> {
        const size_t end = std::min(lists_.size(), (batch + 1) * kListsAtOnce);
        for (size_t i = batch * kListsAtOnce; i < end; ++i)
          CKPT_TRY(judge(lists_[i].name, read_list_of(lists_[i], reader)));
        return {};
      });
    });
  }

 private:
  struct List {
    size_t name = 0;
    Segment segment;
  };

  std::string subject(size_t name) const { return repository_.backend().subject(in_folder(kImages, refs_[name].name)); }

  Result<void> check() {
    CKPT_TRY(repository_.cancel().check());
    std::lock_guard lock(mutex_);
    return go_on_ ? go_on_() : Result<void>();
  }

  Result<void> judge(size_t name, Result<void> done) {
    if (done || done.error().code != Code::kCorrupt) return done;
    std::lock_guard lock(mutex_);
    damage_[name] = std::move(done).error();
    return {};
  }

  Result<void> tell(size_t name, const Extent& extent) const {
    if (!extent.id.empty()) each_(name, extent.id);
    return {};
  }

  Result<void> read_tree_of(size_t name, ChunkReader& reader) {
    const Ref& ref = refs_[name];
    const std::string what = subject(name);
    auto one = [&](const Extent& extent) { return tell(name, extent); };
    CKPT_TRY(read_list(as_bytes(ref.tree), ref.tree_bytes, what, one));
    CKPT_TRY_ASSIGN(const std::vector<Entry> entries, read_tree(ref, reader, what));
    std::vector<List> lists;
    for (const Entry& entry : entries) {
      for (const Segment& segment : entry.segments) {
        each_(name, segment.id);
        lists.push_back({name, segment});
      }
      if (entry.segments.empty() && entry.type == Entry::Type::kFile)
        CKPT_TRY(read_list(as_bytes(entry.list), entry.size, what, one));
    }
    std::lock_guard lock(mutex_);
    lists_.insert(lists_.end(), lists.begin(), lists.end());
    return {};
  }

  Result<void> read_list_of(const List& list, ChunkReader& reader) {
    const std::string what = subject(list.name);
    CKPT_TRY_ASSIGN(const ByteSpan bytes, reader.read(list.segment.id, list.segment.length, what));
    return read_list(bytes, list.segment.covered, what, [&](const Extent& extent) { return tell(list.name, extent); });
  }

  Repository& repository_;
  const std::vector<Ref>& refs_;
  std::vector<std::optional<Error>>& damage_;
  const std::function<void(size_t, const Id&)>& each_;
  const std::function<Result<void>()>& go_on_;
  ChunkReaders readers_;
  std::mutex mutex_;
  std::vector<List> lists_;
};

}  // namespace

Result<void> for_each_needed(Repository& repository, const std::vector<Ref>& refs,
                             std::vector<std::optional<Error>>& damage,
                             const std::function<void(size_t, const Id&)>& each,
                             const std::function<Result<void>()>& go_on) {
  return Needs(repository, refs, damage, each, go_on).run();
}

Result<void> mark_needed(Repository& repository, const std::vector<Ref>& refs, ChunkNumbers& marks,
                         const std::function<Result<void>()>& go_on) {
  std::vector<std::optional<Error>> damage;
  auto mark = [&](size_t, const Id& id) {
    if (uint32_t* number = marks.of(id)) std::atomic_ref(*number).store(1, std::memory_order_relaxed);
  };
  CKPT_TRY(for_each_needed(repository, refs, damage, mark, go_on));
  for (size_t i = 0; i < refs.size(); ++i) {
    if (damage[i])
      return Error(std::move(*damage[i]))
          .with_hint("nobody can say what " + refs[i].name + " needs: ckpt rm, or push it again with --force");
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
  std::vector<std::optional<Error>> damage;
  CKPT_TRY(for_each_needed(repository, refs, damage, [&](size_t name, const Id& id) {
    uint32_t* const number = owners.of(id);
    if (number == nullptr) return;
    const auto own = static_cast<uint32_t>(name + 1);
    std::atomic_ref owner(*number);
    uint32_t before = owner.load(std::memory_order_relaxed);
    while (before != own && before != kShared &&
           !owner.compare_exchange_weak(before, before == 0 ? own : kShared, std::memory_order_relaxed)) {
    }
  }));
  for (size_t i = 0; i < refs.size(); ++i) {
    if (!damage[i]) out.bytes = checked_add(out.bytes, refs[i].bytes).value_or(UINT64_MAX);
    out.names.push_back({std::move(refs[i]), 0, std::move(damage[i])});
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
