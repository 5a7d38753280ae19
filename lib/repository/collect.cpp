#include "lib/repository/collect.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/base/clock.h"
#include "lib/base/hex.h"
#include "lib/repository/pack_writer.h"
#include "lib/repository/usage.h"

namespace ckpt::repository {

namespace {

constexpr unsigned kWasteful = 3;  ///< a pack of which less than 1 - 1/kWasteful is needed is written anew
constexpr size_t kManyIndexObjects = 16;

/// Without its table: a small pack of which all is needed stays as it is.
uint64_t group_bytes(const KnownPack& pack) {
  uint64_t sum = 0;
  for (const Group& group : pack.table.groups) sum += group.stored;
  return sum;
}

std::string push_of(const std::string& pack) { return pack.substr(0, 32); }

constexpr uint64_t kRememberS = uint64_t{90} * 24 * 3600;  ///< who was taken for dead, and its draft

struct Pushes {
  std::map<std::string, Marker> alive;
  std::vector<std::string> unreadable;
  std::vector<std::string> gone, silent;
  std::set<std::string> taken_for_dead;  ///< by whomever, now or before
  std::vector<std::string> drafts;       ///< by their ids
};

/// What lies beside markers, sorted out. True: it is no marker.
bool is_beside_marker(const std::string& name, Pushes& out) {
  const size_t dot = name.find('.');
  const std::string id = name.substr(0, dot), rest = dot == std::string::npos ? "" : name.substr(dot);
  if (rest == kDraft) out.drafts.push_back(id);
  if (rest == kTakenForDead) out.taken_for_dead.insert(id);
  return rest == kDraft || rest == kTakenForDead;
}

Result<Pushes> look_at_pushes(Repository& repository, uint64_t grace_s) {
  Backend& backend = repository.backend();
  CKPT_TRY_ASSIGN(std::vector<StoredObject> objects, backend.list(kPushes));
  Pushes out;
  std::erase_if(objects, [&](const StoredObject& object) { return is_beside_marker(object.name, out); });
  for (const StoredObject& object : objects) {
    if (out.taken_for_dead.count(object.name) != 0) {  // its marker came back
      out.silent.push_back(object.name);
      continue;
    }
    auto text = read_object(backend, kPushes, object, kMaxDocument);
    if (!text && text.error().code == Code::kNotFound) continue;  // it ended
    // One that is being replaced may have another size now.
    if (!text && text.error().code == Code::kCorrupt) text = read_object(backend, kPushes, object.name, kMaxDocument);
    if (!text && text.error().code == Code::kNotFound) continue;
    if (!text && text.error().code != Code::kCorrupt) return std::move(text).error();
    auto marker =
        text ? parse_marker(*text, backend.subject(in_folder(kPushes, object.name))) : Result<Marker>(text.error());
    const Liveness lives = marker ? liveness(*marker, grace_s) : Liveness::kAlive;
    if (!marker)
      out.unreadable.push_back(object.name);
    else if (lives == Liveness::kAlive)
      out.alive.emplace(object.name, std::move(*marker));
    else
      (lives == Liveness::kGone ? out.gone : out.silent).push_back(object.name);
  }
  return out;
}

std::string describe(const std::string& id, const Marker& marker) {
  return fmt::format("{} {} of process {} on {}, since {}", marker.kind, id.substr(0, 8), marker.pid, marker.host,
                     marker.since);
}

class Collection {
 public:
  Collection(Repository& repository, const CollectOptions& options, ProgressSink& progress)
      : repository_(repository), backend_(repository.backend()), options_(options), progress_(progress) {}

  Result<CollectReport> run() {
    if (!options_.dry_run) {
      CKPT_TRY_ASSIGN(marker_, PushMarker::put(backend_, "gc"));
      CKPT_TRY(check_alone(repository_, marker_->id(), {"gc", "repair"}, options_.grace_s));
      CKPT_TRY(backend_.tidy());
    }
    CKPT_TRY(condemn());
    if (!options_.dry_run) CKPT_TRY(remove_condemned());
    return report_;
  }

 private:
  /// Dead ones go before anything is concluded from their absence; one that may live all the same is told so first.
  Result<Pushes> pushes() {
    CKPT_TRY_ASSIGN(Pushes out, look_at_pushes(repository_, options_.grace_s));
    if (marker_) out.alive.erase(marker_->id());
    report_.dead_pushes += out.gone.size() + out.silent.size();
    if (options_.dry_run) return out;
    for (const std::string& silent : out.silent) {
      const std::string told = to_json(TakenForDead{rfc3339_now()});
      if (out.taken_for_dead.insert(silent).second)
        CKPT_TRY(backend_.put(in_folder(kPushes, silent + kTakenForDead), as_bytes(told), false));
      CKPT_TRY(backend_.remove(in_folder(kPushes, silent)));
    }
    CKPT_TRY(let_settle(out.gone.empty() ? 0 : backend_.settles_s()));
    for (const std::string& gone : out.gone) {
      CKPT_TRY(backend_.remove(in_folder(kPushes, gone + kDraft)));
      CKPT_TRY(backend_.remove(in_folder(kPushes, gone)));
    }
    CKPT_TRY(forget_old_ones(out));
    return out;
  }

  /// What a push had sent when it was killed may be on its way: a name, too, which is listed after this.
  Result<void> let_settle(unsigned seconds) const {
    constexpr useconds_t kTickUs = 100'000;
    for (const Stopwatch watch; watch.elapsed_us() < uint64_t{seconds} * 1'000'000; ::usleep(kTickUs))
      CKPT_TRY(repository_.cancel().check());
    return {};
  }

  /// What was left of pushes that were taken for dead long ago, and drafts that nobody has.
  Result<void> forget_old_ones(const Pushes& pushes) {
    for (const std::string& id : pushes.taken_for_dead) {
      auto text = read_object(backend_, kPushes, id + kTakenForDead, kMaxDocument);
      if (!text && text.error().code != Code::kNotFound) return std::move(text).error();
      auto taken = text ? parse_taken_for_dead(*text, "") : Result<TakenForDead>(TakenForDead{rfc3339_now()});
      if (!taken || !is_older(taken->since, kRememberS)) continue;
      CKPT_TRY(backend_.remove(in_folder(kPushes, id + kDraft)));
      CKPT_TRY(backend_.remove(in_folder(kPushes, id + kTakenForDead)));
    }
    bool orphans = false;
    auto has_owner = [](const Pushes& all, const std::string& id) {
      return all.alive.count(id) != 0 || all.taken_for_dead.count(id) != 0 ||
             std::count(all.unreadable.begin(), all.unreadable.end(), id) != 0;
    };
    for (const std::string& id : pushes.drafts) orphans = orphans || !has_owner(pushes, id);
    if (!orphans) return {};
    // A list that was long under way may have missed the marker, which is there before the draft.
    CKPT_TRY_ASSIGN(const Pushes again, look_at_pushes(repository_, options_.grace_s));
    for (const std::string& id : pushes.drafts) {
      const bool silent = std::count(again.silent.begin(), again.silent.end(), id) != 0;
      if (!has_owner(pushes, id) && !has_owner(again, id) && !silent)
        CKPT_TRY(backend_.remove(in_folder(kPushes, id + kDraft)));
    }
    return {};
  }

  /// What is about to get its name: before the names are looked at, for the one becomes the other. One that cannot be
  /// read is of a push that fails.
  Result<std::vector<Ref>> drafts() {
    CKPT_TRY_ASSIGN(const std::vector<StoredObject> objects, backend_.list(kPushes));
    std::vector<Ref> out;
    for (const StoredObject& object : objects) {
      if (!object.name.ends_with(kDraft)) continue;
      auto text = read_object(backend_, kPushes, object, kMaxDocument);
      if (!text && text.error().code != Code::kNotFound && text.error().code != Code::kCorrupt)
        return std::move(text).error();
      auto ref = text ? parse_draft(*text, repository_.seal(), object.name) : Result<Ref>(text.error());
      if (ref) out.push_back(std::move(*ref));
    }
    return out;
  }

  /// The index and what all names need, as they are now.
  Result<std::unique_ptr<ChunkNumbers>> look_at_needs() {
    std::unique_ptr<ChunkNumbers> out;
    CKPT_TRY(unless_moved([&]() -> Result<void> {
      CKPT_TRY_ASSIGN(const std::vector<Ref> about_to_be, drafts());
      CKPT_TRY_ASSIGN(const std::vector<Ref> refs, repository_.refs());
      CKPT_TRY(repository_.load());
      out = std::make_unique<ChunkNumbers>(repository_.index());
      auto go_on = [&] { return marker_ ? marker_->refresh() : Result<void>(); };
      CKPT_TRY(mark_needed(repository_, refs, *out, go_on));
      for (const Ref& ref : about_to_be) {
        auto done = mark_needed(repository_, {ref}, *out, go_on);
        if (!done && done.error().code != Code::kCorrupt) return done;
      }
      return {};
    }));
    return out;
  }

  Result<void> honour_condemned() {
    CKPT_TRY_ASSIGN(const std::vector<Repository::Named> named, repository_.condemned());
    std::vector<Condemned> all;
    for (const Repository::Named& one : named) all.push_back(one.condemned);
    repository_.honour(all);
    return {};
  }

  /// Step one: packs that nothing needs, and those that hardly anything needs once that lies elsewhere, are named.
  Result<void> condemn() {
    CKPT_TRY_ASSIGN(const Pushes under_way, pushes());
    progress_.begin("mark", 0);
    CKPT_TRY_ASSIGN(const std::unique_ptr<ChunkNumbers> marks, look_at_needs());
    CKPT_TRY(honour_condemned());
    Condemned condemned;
    std::vector<uint32_t> wasteful;
    for (uint32_t number = 0; number < repository_.index().packs().size(); ++number) {
      const KnownPack& pack = repository_.index().packs()[number];
      const std::string push = push_of(pack.name);
      const bool being_written = under_way.alive.count(push) != 0 ||
                                 std::count(under_way.unreadable.begin(), under_way.unreadable.end(), push) != 0;
      if (pack.condemned || being_written) continue;
      const uint64_t needed = needed_bytes(number, *marks);
      if (needed == 0)
        condemned.packs.push_back(pack.name);
      else if (const uint64_t all = group_bytes(pack); all - std::min(all, needed) > all / kWasteful)
        wasteful.push_back(number);
    }
    if (options_.dry_run) return foresee(wasteful, *marks, std::move(condemned), under_way);
    CKPT_TRY(rewrite(wasteful, *marks, condemned));
    if (condemned.packs.empty()) return {};
    condemned.since = rfc3339_now();
    CKPT_TRY_ASSIGN(const std::string name, random_id());
    return backend_.put(in_folder(kCondemned, name), as_bytes(to_json(condemned)), true);
  }

  /// What the rest of this would do.
  Result<void> foresee(const std::vector<uint32_t>& wasteful, ChunkNumbers& marks, Condemned condemned,
                       const Pushes& under_way) {
    for (uint32_t number : wasteful) {
      const KnownPack& pack = repository_.index().packs()[number];
      for (const Id& id : pack.table.ids) {
        if (*marks.of(id) != 0 && counts_here(number, id)) moved_.insert(id);
      }
      report_.moved_bytes += needed_bytes(number, marks), ++report_.rewritten_packs;
    }
    for (uint32_t number : wasteful) condemned.packs.push_back(repository_.index().packs()[number].name);
    CKPT_TRY_ASSIGN(std::vector<Repository::Named> named, repository_.condemned());
    if (!condemned.packs.empty()) named.push_back({"", condemned});
    repository_.honour({condemned});
    const std::set<std::string> blocked = find_blocked(named, under_way);
    std::vector<std::string> gone;
    return judge_all(named, blocked, marks, gone);
  }

  /// Neither will anybody remove it nor will who wrote it take it back.
  static bool is_kept(const KnownPack& one) { return one.indexed && !one.condemned; }

  /// Where a chunk counts, of several packs that have it and may be relied on.
  bool counts_here(uint32_t pack, const Id& id) const {
    auto place = repository_.index().find(id, is_kept);
    if (!place) place = repository_.index().find(id, [](const KnownPack& one) { return !one.condemned; });
    return place && place->pack == pack;
  }

  uint64_t needed_bytes(uint32_t number, ChunkNumbers& marks) const {
    const PackTable& table = repository_.index().packs()[number].table;
    uint64_t sum = 0;
    for (size_t chunk = 0; chunk < table.ids.size(); ++chunk) {
      if (*marks.of(table.ids[chunk]) != 0 && counts_here(number, table.ids[chunk])) sum += stored_bytes(table, chunk);
    }
    return sum;
  }

  /// What is needed of these packs into new ones. A pack with damage stays as it is.
  Result<void> rewrite(const std::vector<uint32_t>& packs, ChunkNumbers& marks, Condemned& condemned) {
    if (packs.empty()) return {};
    PackWriter writer(backend_, marker_->id());
    PackWriter::Stream stream(writer);
    ChunkReader reader(repository_);
    std::vector<std::string> emptied;
    IdSet moved;
    for (uint32_t number : packs) {
      const KnownPack& pack = repository_.index().packs()[number];
      bool whole = true;
      for (size_t chunk = 0; chunk < pack.table.ids.size() && whole; ++chunk) {
        CKPT_TRY(repository_.cancel().check());
        CKPT_TRY(marker_->refresh());
        const Id& id = pack.table.ids[chunk];
        if (*marks.of(id) == 0 || !counts_here(number, id) || !moved.insert(id)) continue;
        auto content = reader.read(id, pack.table.lengths[chunk], pack.name);
        if (!content && content.error().code != Code::kCorrupt) return std::move(content).error();
        if (!content)
          progress_.note(content.error().text()), whole = false;
        else
          CKPT_TRY(stream.add(id, *content));
      }
      if (whole) emptied.push_back(pack.name);
    }
    CKPT_TRY(stream.flush());
    CKPT_TRY(writer.finish());
    report_.rewritten_packs += emptied.size(), report_.moved_bytes += writer.stored();
    condemned.packs.insert(condemned.packs.end(), emptied.begin(), emptied.end());
    return {};
  }

  /// Step two: of what was condemned, now or by an earlier run, goes what no push can rely on that is under way, and
  /// nothing needs that is there. In this order: condemnations, pushes, names, packs.
  Result<void> remove_condemned() {
    CKPT_TRY_ASSIGN(const std::vector<Repository::Named> named, repository_.condemned());
    CKPT_TRY_ASSIGN(const Pushes under_way, pushes());
    const std::set<std::string> blocked = find_blocked(named, under_way);
    CKPT_TRY_ASSIGN(const std::unique_ptr<ChunkNumbers> marks, look_at_needs());
    std::vector<Condemned> all;
    for (const Repository::Named& one : named) all.push_back(one.condemned);
    repository_.honour(all);
    // What others have condemned since this looked counts, too.
    CKPT_TRY(honour_condemned());
    CKPT_TRY(still_here());
    std::vector<std::string> gone;
    CKPT_TRY(judge_all(named, blocked, *marks, gone));
    if (!gone.empty() || repository_.index_objects().size() > kManyIndexObjects)
      CKPT_TRY(rewrite_index(repository_, gone));
    for (const Repository::Named& one : named) {
      if (blocked.count(one.name) == 0) CKPT_TRY(backend_.remove(in_folder(kCondemned, one.name)));
    }
    return {};
  }

  /// Whoever took this for dead may be collecting.
  Result<void> still_here() {
    CKPT_TRY(marker_->refresh());
    return marker_->check_alive();
  }

  /// Condemnations that a push under way has not seen.
  std::set<std::string> find_blocked(const std::vector<Repository::Named>& named, const Pushes& under_way) {
    std::set<std::string> out;
    for (const Repository::Named& one : named) {
      for (const std::string& push : under_way.unreadable) {
        out.insert(one.name);
        wait_for("push " + push.substr(0, 8) + ", of which nothing can be read");
      }
      for (const auto& [push, marker] : under_way.alive) {
        if (std::count(marker.honoured.begin(), marker.honoured.end(), one.name) != 0) continue;
        out.insert(one.name);
        wait_for(describe(push, marker));
      }
    }
    return out;
  }

  Result<void> judge_all(const std::vector<Repository::Named>& named, const std::set<std::string>& blocked,
                         ChunkNumbers& marks, std::vector<std::string>& gone) {
    for (const Repository::Named& one : named) {
      for (const std::string& name : one.condemned.packs)
        CKPT_TRY(judge(name, blocked.count(one.name) != 0, marks, gone));
    }
    return {};
  }

  void wait_for(const std::string& who) {
    if (std::count(report_.waits_for.begin(), report_.waits_for.end(), who) == 0) report_.waits_for.push_back(who);
  }

  Result<void> judge(const std::string& name, bool blocked, ChunkNumbers& marks, std::vector<std::string>& gone) {
    const auto number = repository_.index().find_pack(name);
    if (!number || std::count(gone.begin(), gone.end(), name) != 0) return {};
    const KnownPack& pack = repository_.index().packs()[*number];
    if (blocked) {
      ++report_.waiting_packs, report_.waiting_bytes += pack.size;
      return {};
    }
    for (const Id& id : pack.table.ids) {
      if (*marks.of(id) == 0 || moved_.contains(id) || repository_.index().find(id, is_kept)) continue;
      ++report_.rescued_packs;
      return {};
    }
    if (!options_.dry_run) {
      CKPT_TRY(marker_->refresh());
      CKPT_TRY(backend_.remove(in_folder(kPacks, name)));
    }
    gone.push_back(name);
    ++report_.removed_packs, report_.removed_bytes += pack.size;
    return {};
  }

  Repository& repository_;
  Backend& backend_;
  const CollectOptions& options_;
  ProgressSink& progress_;
  CollectReport report_;
  IdSet moved_;  ///< dry run: what would lie in new packs
  std::unique_ptr<PushMarker> marker_;  ///< not of a dry run
};

}  // namespace

Result<void> check_alone(Repository& repository, const std::string& own, const std::vector<std::string>& kinds,
                         uint64_t grace_s) {
  CKPT_TRY_ASSIGN(const Pushes others, look_at_pushes(repository, grace_s));
  for (const auto& [id, marker] : others.alive) {
    if (id != own && std::count(kinds.begin(), kinds.end(), marker.kind) != 0)
      return fail(Code::kBusy, repository.backend().subject(), describe(id, marker) + " is under way");
  }
  if (others.unreadable.empty() || std::count(kinds.begin(), kinds.end(), "push") == 0) return {};
  return Error(Code::kBusy, repository.backend().subject(in_folder(kPushes, others.unreadable.front())),
               "nobody can say who is at work: nothing can be read of this")
      .with_hint("remove it once nobody pushes");
}

Result<CollectReport> collect_garbage(Repository& repository, const CollectOptions& options, ProgressSink& progress) {
  return Collection(repository, options, progress).run();
}

Result<void> rewrite_index(Repository& repository, const std::vector<std::string>& without) {
  Backend& backend = repository.backend();
  const std::set<std::string> gone(without.begin(), without.end());
  std::vector<IndexedPack> packs;
  for (const KnownPack& pack : repository.index().packs()) {
    // One that is in no index is a push's that may yet take it back, or a dead one's.
    if (pack.indexed && gone.count(pack.name) == 0) packs.push_back({pack.name, pack.size, pack.table});
  }
  std::vector<const IndexedPack*> all;
  for (const IndexedPack& pack : packs) all.push_back(&pack);
  CKPT_TRY(put_index(backend, all));
  for (const std::string& object : repository.index_objects()) CKPT_TRY(backend.remove(in_folder(kIndex, object)));
  return {};
}

}  // namespace ckpt::repository
