#include "lib/repository/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/worker_pool.h"
#include "lib/repository/collect.h"
#include "lib/repository/pack_writer.h"
#include "lib/repository/usage.h"

namespace ckpt::repository {

namespace {

/// Groups of one pack that are read together.
struct Piece {
  uint32_t pack = 0;
  size_t first = 0, count = 0;
};

class Check {
 public:
  Check(Repository& repository, const CheckOptions& options, ProgressSink& progress)
      : repository_(repository), backend_(repository.backend()), options_(options), progress_(progress) {}

  Result<CheckReport> run() {
    Stopwatch watch;
    if (options_.repair) {
      CKPT_TRY_ASSIGN(marker_, PushMarker::put(backend_, "repair"));
      CKPT_TRY(still_alone());
    }
    CKPT_TRY(find_names());
    CKPT_TRY(repository_.load());
    for (const KnownPack& pack : repository_.index().packs()) known_.insert(pack.name);
    report_.damage.insert(report_.damage.end(), repository_.faults().begin(), repository_.faults().end());
    if (!options_.names.empty()) CKPT_TRY(mark_wanted());
    CKPT_TRY(read_packs());
    CKPT_TRY(check_tables());
    if (options_.repair) CKPT_TRY(repair());
    CKPT_TRY(find_losses());
    std::sort(report_.damage.begin(), report_.damage.end());
    report_.damage.erase(std::unique(report_.damage.begin(), report_.damage.end()), report_.damage.end());
    report_.us = watch.elapsed_us();
    return report_;
  }

 private:
  Result<void> still_alone() {
    CKPT_TRY(marker_->refresh());
    CKPT_TRY(marker_->check_alive());
    return check_alone(repository_, marker_->id(), {"push", "gc", "repair"});
  }

  Result<void> find_names() {
    if (!options_.names.empty()) {
      for (const std::string& name : options_.names) {
        auto ref = repository_.ref(name);
        if (ref)
          refs_.push_back(std::move(*ref));
        else if (ref.error().code != Code::kCorrupt)
          return std::move(ref).error();
        else
          report_.damage.push_back(ref.error().text()), report_.losses.push_back({name, "", 0, 0});
      }
    } else {
      std::vector<Error> damaged;
      CKPT_TRY_ASSIGN(refs_, repository_.refs(&damaged));
      for (const Error& error : damaged) {
        report_.damage.push_back(error.text());
        damaged_refs_.push_back(error.subject.substr(error.subject.rfind('/') + 1));
        report_.losses.push_back({damaged_refs_.back(), "", 0, 0});
      }
    }
    report_.names = refs_.size() + damaged_refs_.size();
    return {};
  }

  Result<void> mark_wanted() {
    wanted_ = std::make_unique<ChunkNumbers>(repository_.index());
    std::vector<std::optional<Error>> damage;  // told as what is lost
    return for_each_needed(repository_, refs_, damage, [&](size_t, const Id& id) {
      if (uint32_t* number = wanted_->of(id)) std::atomic_ref(*number).store(1, std::memory_order_relaxed);
    });
  }

  /// Whether a group is to be read: one of those that are asked for, and of the sample.
  bool is_chosen(uint32_t pack, const Group& group) const {
    if (options_.percent < 100) {
      const KnownPack& known = repository_.index().packs()[pack];
      const std::string what = fmt::format("{} {} {}", options_.seed, known.name, group.offset);
      if (static_cast<double>(xxh3_128(as_bytes(what)).lo % 1'000'000) >= options_.percent * 10'000) return false;
    }
    if (wanted_ == nullptr) return true;
    const PackTable& table = repository_.index().packs()[pack].table;
    for (size_t i = group.first; i < size_t{group.first} + group.count; ++i) {
      if (*wanted_->of(table.ids[i]) != 0) return true;
    }
    return false;
  }

  std::vector<Piece> pieces(uint64_t& bytes) const {
    std::vector<Piece> out;
    for (uint32_t pack = 0; pack < repository_.index().packs().size(); ++pack) {
      const std::vector<Group>& groups = repository_.index().packs()[pack].table.groups;
      for (size_t i = 0; i < groups.size(); ++i) {
        if (!is_chosen(pack, groups[i])) continue;
        bytes += groups[i].stored;
        const bool goes_on =
            !out.empty() && out.back().pack == pack && out.back().first + out.back().count == i &&
            groups[i].offset + groups[i].stored - groups[out.back().first].offset <= backend_.good_read();
        if (goes_on)
          ++out.back().count;
        else
          out.push_back({pack, i, 1});
      }
    }
    return out;
  }

  Result<void> read_packs() {
    uint64_t bytes = 0;
    const std::vector<Piece> all = pieces(bytes);
    for (const KnownPack& pack : repository_.index().packs()) bad_.emplace_back(pack.table.ids.size(), false);
    progress_.begin("verify", bytes);
    std::optional<WorkerPool> pool;
    make_helpers(0, pool);
    return side_by_side(pool ? &*pool : nullptr, all.size(), [&](size_t i) -> Result<void> {
      CKPT_TRY(repository_.cancel().check());
      return read_piece(all[i]);
    });
  }

  Result<void> read_piece(const Piece& piece) {
    if (marker_) {
      std::lock_guard lock(mutex_);
      CKPT_TRY(marker_->refresh());
    }
    const KnownPack& pack = repository_.index().packs()[piece.pack];
    const std::string name = in_folder(kPacks, pack.name);
    const Group &first = pack.table.groups[piece.first], &last = pack.table.groups[piece.first + piece.count - 1];
    thread_local std::vector<std::byte> bytes;
    bytes.resize(last.offset + last.stored - first.offset);
    auto read = backend_.read(name, pack.size, first.offset, bytes);
    if (!read && read.error().code != Code::kCorrupt && read.error().sys_errno != EIO) return read;
    if (!read) {
      std::lock_guard lock(mutex_);
      report_.damage.push_back(read.error().text());
    }
    for (size_t i = piece.first; i < piece.first + piece.count; ++i) {
      const Group& group = pack.table.groups[i];
      if (!read)
        mark_bad(piece.pack, group);
      else
        check_group(piece.pack, group, ByteSpan(bytes).subspan(group.offset - first.offset, group.stored));
      progress_.advance(group.stored);
    }
    return {};
  }

  void mark_bad(uint32_t pack, const Group& group) {
    std::lock_guard lock(mutex_);
    for (size_t i = group.first; i < size_t{group.first} + group.count; ++i) bad_[pack][i] = true;
  }

  void check_group(uint32_t pack, const Group& group, ByteSpan stored) {
    const KnownPack& known = repository_.index().packs()[pack];
    const std::string subject = backend_.subject(in_folder(kPacks, known.name));
    thread_local std::vector<std::byte> content;
    const bool unpacked = unpack_group(group, stored, subject, content).has_value();
    size_t at = 0, damaged = 0;
    std::vector<size_t> which;
    for (size_t i = group.first; unpacked && i < size_t{group.first} + group.count; ++i) {
      const uint32_t length = known.table.lengths[i];
      if (repository_.ids().of(ByteSpan(content).subspan(at, length)) != known.table.ids[i])
        which.push_back(i), ++damaged;
      at += length;
    }
    if (!unpacked) mark_bad(pack, group), damaged = group.count;
    std::lock_guard lock(mutex_);
    for (size_t i : which) bad_[pack][i] = true;
    report_.chunks += group.count, report_.bytes += group.stored;
    if (damaged != 0)
      report_.damage.push_back(fmt::format("{}: {} of {} chunks at byte {} are not what their ids say", subject,
                                           damaged, group.count, group.offset));
  }

  /// An index has what it says of a pack from the pack itself, which must be able to say it again.
  Result<void> check_tables() {
    if (options_.percent < 100 || !options_.names.empty()) return {};
    for (uint32_t number = 0; number < repository_.index().packs().size(); ++number) {
      const KnownPack& pack = repository_.index().packs()[number];
      CKPT_TRY(repository_.cancel().check());
      if (!pack.indexed) continue;
      auto table = read_pack_table(backend_, {pack.name, pack.size});
      if (table && encode_table(*table) == encode_table(pack.table)) continue;
      if (!table && table.error().code != Code::kCorrupt) return std::move(table).error();
      report_.damage.push_back(table
                                   ? backend_.subject(in_folder(kPacks, pack.name)) + ": the index says otherwise of it"
                                   : table.error().text());
      bad_tables_.push_back(number);
    }
    return {};
  }

  bool is_good(const Id& id) const {
    bool out = false;
    repository_.index().find_all(id, [&](const ChunkPlace& place) {
      out = place.pack >= bad_.size() || !bad_[place.pack][place.chunk];
      return !out;
    });
    return out;
  }

  Result<void> find_losses() {
    std::vector<std::vector<Loss>> losses(refs_.size());
    ChunkReaders readers(repository_);
    std::optional<WorkerPool> pool;
    make_helpers(0, pool);
    CKPT_TRY(side_by_side(pool ? &*pool : nullptr, refs_.size(), [&](size_t i) {
      return readers.with([&](ChunkReader& reader) { return find_losses_of(refs_[i], reader, losses[i]); });
    }));
    for (std::vector<Loss>& some : losses)
      report_.losses.insert(report_.losses.end(), std::make_move_iterator(some.begin()),
                            std::make_move_iterator(some.end()));
    return {};
  }

  Result<void> find_losses_of(const Ref& ref, ChunkReader& reader, std::vector<Loss>& out) {
    const std::string subject = backend_.subject(in_folder(kImages, ref.name));
    auto entries = read_tree(ref, reader, subject);
    if (!entries && entries.error().code != Code::kCorrupt) return std::move(entries).error();
    if (!entries) {
      out.push_back({ref.name, "", 0, ref.bytes});
      std::lock_guard lock(mutex_);
      report_.damage.push_back(entries.error().text());
      return {};
    }
    for (const Entry& entry : *entries) {
      CKPT_TRY(repository_.cancel().check());
      if (entry.type == Entry::Type::kFile) CKPT_TRY(find_losses_of(ref, entry, reader, subject, out));
    }
    return {};
  }

  Result<void> find_losses_of(const Ref& ref, const Entry& entry, ChunkReader& reader, const std::string& subject,
                              std::vector<Loss>& out) {
    Loss loss{ref.name, entry.path.empty() ? "." : entry.path, 0, 0};
    auto done = for_each_chunk(entry, reader, subject, [&](const Extent& extent, bool is_list) -> Result<void> {
      if (extent.id.empty() || is_good(extent.id)) return {};
      ++loss.chunks;
      if (!is_list) loss.bytes += extent.length;
      return {};
    });
    if (!done && done.error().code != Code::kCorrupt) return done;
    if (!done) loss.chunks = std::max<uint64_t>(1, loss.chunks), loss.bytes = entry.size;
    if (loss.chunks != 0) out.push_back(std::move(loss));
    return {};
  }

  /// Out of the way, where nobody looks for it and a person can.
  Result<void> set_aside(const char* folder, const std::string& name) {
    auto text = read_object(backend_, folder, name, kMaxPack);
    if (text)
      CKPT_TRY(backend_.put(in_folder(kDamaged, name), as_bytes(*text), false));
    else if (text.error().code != Code::kCorrupt && text.error().code != Code::kNotFound &&
             text.error().sys_errno != EIO)
      return std::move(text).error();
    CKPT_TRY(backend_.remove(in_folder(folder, name)));
    report_.repaired.push_back(
        fmt::format("{} was set aside{}", backend_.subject(in_folder(folder, name)),
                    text ? ", to " + backend_.subject(in_folder(kDamaged, name)) : ": it cannot be read"));
    return {};
  }

  /// What is sound of damaged packs goes into new ones first; then they are set aside.
  Result<void> repair() {
    CKPT_TRY(still_alone());
    std::vector<std::string> aside = repository_.unreadable_packs();
    IdSet written;
    PackWriter writer(backend_, marker_->id());
    PackWriter::Stream stream(writer);
    ChunkReader reader(repository_);
    for (uint32_t number = 0; number < repository_.index().packs().size(); ++number) {
      const KnownPack& pack = repository_.index().packs()[number];
      const bool damaged = std::find(bad_[number].begin(), bad_[number].end(), true) != bad_[number].end() ||
                           std::count(bad_tables_.begin(), bad_tables_.end(), number) != 0;
      if (!damaged) continue;
      for (size_t chunk = 0; chunk < pack.table.ids.size(); ++chunk) {
        CKPT_TRY(repository_.cancel().check());
        CKPT_TRY(marker_->refresh());
        if (bad_[number][chunk] || !written.insert(pack.table.ids[chunk])) continue;
        auto content = reader.read(pack.table.ids[chunk], pack.table.lengths[chunk], pack.name);
        if (content)
          CKPT_TRY(stream.add(pack.table.ids[chunk], *content));
        else if (content.error().code != Code::kCorrupt)
          return std::move(content).error();
      }
      aside.push_back(pack.name);
    }
    CKPT_TRY(stream.flush());
    CKPT_TRY(writer.finish());
    if (writer.chunks() != 0)
      report_.repaired.push_back(fmt::format("{} sound chunks of damaged packs were written anew", writer.chunks()));
    CKPT_TRY(still_alone());
    CKPT_TRY(repair_index(aside));
    for (const std::string& name : aside) CKPT_TRY(set_aside(kPacks, name));
    for (const std::string& name : damaged_refs_) {
      const auto now = repository_.ref(name);  // somebody may have removed or replaced it
      const bool stays = now || now.error().code == Code::kNotFound || now.error().code == Code::kUnsupported;
      if (!stays) CKPT_TRY(set_aside(kImages, name));
    }
    CKPT_TRY(drop_damaged_condemnations());
    CKPT_TRY(repository_.load());
    bad_.clear();  // what is left is sound
    for (const KnownPack& pack : repository_.index().packs()) bad_.emplace_back(pack.table.ids.size(), false);
    return {};
  }

  Result<void> repair_index(const std::vector<std::string>& without) {
    CKPT_TRY_ASSIGN(const std::vector<StoredObject> before, backend_.list(kIndex));
    CKPT_TRY(repository_.load());
    for (uint32_t i = 0; i < repository_.index().packs().size(); ++i) {
      KnownPack& pack = repository_.index().pack(i);
      pack.indexed = pack.indexed || known_.count(pack.name) != 0;
    }
    CKPT_TRY(rewrite_index(repository_, without));
    report_.repaired.push_back(
        fmt::format("the index was made anew, of {} packs",
                    repository_.index().packs().size() - std::min(without.size(), repository_.index().packs().size())));
    return {};
  }

  /// Without it nothing is condemned, which is safe.
  Result<void> drop_damaged_condemnations() {
    CKPT_TRY_ASSIGN(const std::vector<StoredObject> objects, backend_.list(kCondemned));
    for (const StoredObject& object : objects) {
      auto text = read_object(backend_, kCondemned, object, kMaxDocument);
      if (text && parse_condemned(*text, "")) continue;
      CKPT_TRY(set_aside(kCondemned, object.name));
    }
    return {};
  }

  Repository& repository_;
  Backend& backend_;
  const CheckOptions& options_;
  ProgressSink& progress_;
  CheckReport report_;
  std::vector<Ref> refs_;
  std::vector<std::string> damaged_refs_;
  std::unique_ptr<ChunkNumbers> wanted_;
  std::mutex mutex_;
  std::vector<std::vector<bool>> bad_;  ///< by pack and chunk
  std::vector<uint32_t> bad_tables_;
  std::set<std::string> known_;         ///< the packs that were there at first
  std::unique_ptr<PushMarker> marker_;  ///< of a repair
};

}  // namespace

Result<CheckReport> check(Repository& repository, const CheckOptions& options, ProgressSink& progress) {
  if (options.repair && (!options.names.empty() || options.percent < 100))
    return fail(Code::kUsage, "--repair", "is of the whole store: no names and no --sample go with it");
  return unless_moved([&] { return Check(repository, options, progress).run(); });
}

}  // namespace ckpt::repository
