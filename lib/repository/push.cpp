#include "lib/repository/push.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/file_stream.h"
#include "lib/base/worker_pool.h"
#include "lib/repository/collect.h"
#include "lib/repository/cutter.h"
#include "lib/repository/pack_writer.h"
#include "lib/repository/source.h"

namespace ckpt::repository {

namespace {

constexpr uint64_t kUnit = 64 << 20;  ///< of a file, read by one thread front to back

struct Unit {
  size_t file = 0;
  uint64_t offset = 0, length = 0;
};

/// What a unit became.
struct Stored {
  std::string list;  ///< where it is short and the whole of a file
  std::vector<Segment> segments;
};

/// A multiple of kUnit, or a little less where that lies in a fixed piece.
uint64_t boundary(const SourceFile& file, uint64_t at) {
  auto behind = std::upper_bound(file.fixed.begin(), file.fixed.end(), at,
                                 [](uint64_t wanted, const Fixed& one) { return wanted < one.offset; });
  if (behind == file.fixed.begin()) return at;
  const Fixed& one = *std::prev(behind);
  return at < one.offset + one.length ? one.offset : at;
}

std::vector<Unit> units_of(const Source& source) {
  std::vector<Unit> out;
  for (size_t i = 0; i < source.files.size(); ++i) {
    const uint64_t size = source.entries[source.files[i].entry].size;
    for (uint64_t at = 0; at < size;) {
      const uint64_t end = size - at <= kUnit ? size : boundary(source.files[i], (at / kUnit + 1) * kUnit);
      out.push_back({i, at, end - at});
      at = end;
    }
  }
  return out;
}

class Push {
 public:
  Push(Repository& repository, const PushOptions& options, ProgressSink& progress)
      : repository_(repository), options_(options), progress_(progress), cuts_(repository.ids()) {}

  Result<PushReport> run(const std::filesystem::path& path) {
    Stopwatch watch;
    CKPT_TRY(check_name(options_.name));
    CKPT_TRY_ASSIGN(marker_, PushMarker::put(repository_.backend()));
    CKPT_TRY(check_alone(repository_, marker_->id(), {"repair"}));
    CKPT_TRY_ASSIGN(const std::vector<Repository::Named> condemned, repository_.condemned());
    CKPT_TRY(marker_->honour(condemned));
    CKPT_TRY(check_free());
    CKPT_TRY_ASSIGN(source_, find_source(path, repository_.cancel()));
    CKPT_TRY(repository_.load());
    std::vector<Condemned> all;
    for (const Repository::Named& one : condemned) all.push_back(one.condemned);
    repository_.honour(all);
    writer_ = std::make_unique<PackWriter>(repository_.backend(), marker_->id());
    CKPT_TRY(store_files());
    CKPT_TRY(store_tree());
    CKPT_TRY(writer_->finish());
    CKPT_TRY(give_name());
    report_.ref = ref_;
    report_.chunks = chunks_, report_.new_chunks = writer_->chunks();
    report_.new_bytes = writer_->bytes(), report_.stored += writer_->stored();
    report_.us = watch.elapsed_us();
    return report_;
  }

 private:
  /// Before anything is read; `give_name` makes sure.
  Result<void> check_free() {
    if (options_.force) return {};
    CKPT_TRY_ASSIGN(const std::vector<StoredObject> there, repository_.backend().list(kImages));
    for (const StoredObject& object : there) {
      if (object.name == options_.name) return taken();
    }
    return {};
  }
  Error taken() const {
    return Error(Code::kUsage, options_.name, "is in the store already")
        .with_hint("choose another name, or give --force to replace it");
  }

  bool is_known(const Id& id) const {
    bool out = false;
    repository_.index().find_all(id, [&](const ChunkPlace& place) {
      const KnownPack& pack = repository_.index().packs()[place.pack];
      out = pack.indexed && !pack.condemned;
      return !out;
    });
    return out;
  }

  Result<Id> keep(ByteSpan content, PackWriter::Stream& stream) {
    const Id id = repository_.ids().of(content);
    ++chunks_;
    if (!is_known(id) && fresh_.insert(id)) CKPT_TRY(stream.add(id, content));
    return id;
  }

  Result<Segment> keep_list(ListWriter& list, PackWriter::Stream& stream) {
    Segment out;
    out.covered = list.covered(), out.length = static_cast<uint32_t>(list.size());
    CKPT_TRY_ASSIGN(out.id, keep(as_bytes(list.take()), stream));
    return out;
  }

  Result<Stored> store_unit(const Unit& unit, PackWriter::Stream& stream) {
    const SourceFile& file = source_.files[unit.file];
    const uint64_t size = source_.entries[file.entry].size;
    CKPT_TRY_ASSIGN(const UniqueFd fd, open_source(file));
    Stored out;
    ListWriter list;
    auto each = [&](ByteSpan piece) -> Result<void> {
      if (is_zero(piece)) {
        list.add_zeros(piece.size());
      } else {
        CKPT_TRY_ASSIGN(const Id id, keep(piece, stream));
        list.add(id, static_cast<uint32_t>(piece.size()));
      }
      if (list.size() < kMaxList) return {};
      CKPT_TRY_ASSIGN(const Segment segment, keep_list(list, stream));
      out.segments.push_back(segment);
      return {};
    };
    Cutter cutter = file.pages ? Cutter(file.fixed, unit.offset) : Cutter(cuts_);
    FileStream reader;
    CKPT_TRY(reader.read(fd.get(), unit.offset, unit.length, file.path.string(), [&](ByteSpan data) -> Result<void> {
      CKPT_TRY(repository_.cancel().check());
      progress_.advance(data.size());
      return cutter.feed(data, each);
    }));
    CKPT_TRY(cutter.finish(each));
    if (unit.length == size && out.segments.empty() && list.size() <= kMaxInlineList) {
      out.list = list.take();
    } else if (list.covered() != 0) {
      CKPT_TRY_ASSIGN(const Segment segment, keep_list(list, stream));
      out.segments.push_back(segment);
    }
    return out;
  }

  Result<void> store_files() {
    const std::vector<Unit> units = units_of(source_);
    std::vector<Stored> stored(units.size());
    progress_.begin("push", source_.bytes);
    std::optional<WorkerPool> pool;
    make_helpers(0, pool);
    CKPT_TRY(side_by_side(pool ? &*pool : nullptr, units.size(), [&](size_t i) -> Result<void> {
      CKPT_TRY(refresh());
      std::unique_ptr<PackWriter::Stream> stream = take_stream();
      CKPT_TRY_ASSIGN(stored[i], store_unit(units[i], *stream));
      give_back(std::move(stream));
      return {};
    }));
    for (size_t i = 0; i < units.size(); ++i) {
      Entry& entry = source_.entries[source_.files[units[i].file].entry];
      entry.list = std::move(stored[i].list);
      entry.segments.insert(entry.segments.end(), stored[i].segments.begin(), stored[i].segments.end());
    }
    for (const SourceFile& file : source_.files) {
      CKPT_TRY_ASSIGN(const UniqueFd unchanged, open_source(file));
    }
    for (const SourceFile& folder : source_.folders) {
      CKPT_TRY_ASSIGN(const UniqueFd unchanged, open_source(folder));
    }
    return {};
  }

  Result<void> store_tree() {
    const std::string tree = encode_tree(source_.entries);
    if (tree.size() > kMaxTree || source_.entries.size() > kMaxEntries)
      return fail(Code::kUnsupported, options_.name, "has too many files for one name in a store");
    std::unique_ptr<PackWriter::Stream> stream = take_stream();
    ListWriter list;
    for (size_t at = 0; at < tree.size(); at += kTreePiece) {
      const ByteSpan piece = as_bytes(std::string_view(tree).substr(at, kTreePiece));
      CKPT_TRY_ASSIGN(const Id id, keep(piece, *stream));
      list.add(id, static_cast<uint32_t>(piece.size()));
    }
    ref_.tree_bytes = tree.size(), ref_.tree = list.take();
    give_back(std::move(stream));
    for (auto& one : idle_) CKPT_TRY(one->flush());
    return {};
  }

  Result<void> give_name() {
    ref_.name = options_.name, ref_.pushed = rfc3339_now();
    ref_.created = source_.created.empty() ? ref_.pushed : source_.created;
    ref_.kind = source_.kind, ref_.format = source_.kind == "model" ? options_.format : source_.format;
    ref_.path = source_.path, ref_.bytes = source_.bytes;
    ref_.files = source_.files.size(), ref_.images = source_.images;
    CKPT_TRY(repository_.cancel().check());
    CKPT_TRY(refresh());
    const std::string text = encode_ref(ref_, repository_.seal());
    // Whoever took this push for dead may have concluded that nothing refers to what it refers to; who does so after
    // this looked finds the draft.
    CKPT_TRY(marker_->put_draft(text));
    CKPT_TRY(marker_->check_alive());
    CKPT_TRY(refresh());
    const std::string object = in_folder(kImages, options_.name);
    Result<void> put = repository_.backend().put(object, as_bytes(text), !options_.force);
    if (!put && put.error().code == Code::kMismatch) return taken();
    CKPT_TRY(std::move(put));
    report_.stored += text.size();
    return {};
  }

  Result<void> refresh() {
    std::lock_guard lock(mutex_);
    return marker_->refresh();
  }
  std::unique_ptr<PackWriter::Stream> take_stream() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<PackWriter::Stream>(*writer_);
    std::unique_ptr<PackWriter::Stream> out = std::move(idle_.back());
    idle_.pop_back();
    return out;
  }
  void give_back(std::unique_ptr<PackWriter::Stream> stream) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(stream));
  }

  Repository& repository_;
  const PushOptions& options_;
  ProgressSink& progress_;
  const ContentCuts cuts_;
  Source source_;
  Ref ref_;
  PushReport report_;
  IdSet fresh_;
  std::atomic<uint64_t> chunks_{0};
  std::mutex mutex_;
  std::unique_ptr<PushMarker> marker_;
  std::unique_ptr<PackWriter> writer_;  ///< taken back before the marker goes
  std::vector<std::unique_ptr<PackWriter::Stream>> idle_;
};

}  // namespace

Result<PushReport> push(Repository& repository, const std::filesystem::path& path, const PushOptions& options,
                        ProgressSink& progress) {
  return Push(repository, options, progress).run(path);
}

}  // namespace ckpt::repository
