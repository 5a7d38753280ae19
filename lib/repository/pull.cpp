#include "lib/repository/pull.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/file_stream.h"
#include "lib/base/io.h"
#include "lib/base/staged_dir.h"
#include "lib/base/worker_pool.h"
#include "lib/repository/chunk_reader.h"
#include "lib/repository/cutter.h"
#include "lib/repository/source.h"

namespace ckpt::repository {

namespace fs = std::filesystem;

namespace {

constexpr size_t kWrite = 1 << 20;

/// What is in the folder that the pull replaces, by content.
class OldContent {
 public:
  Result<void> look(const fs::path& dir, Repository& repository) {
    auto source = find_source(dir, repository.cancel());
    if (!source) return repository.cancel().check();  // then there is nothing to make use of
    files_ = std::move(source->files);
    const ContentCuts cuts(repository.ids());
    std::optional<WorkerPool> pool;
    make_helpers(0, pool);
    CKPT_TRY(side_by_side(pool ? &*pool : nullptr, files_.size(), [&](size_t i) -> Result<void> {
      const auto done = take(i, source->entries[files_[i].entry].size, cuts, repository);
      return done || done.error().code == Code::kInterrupted ? done : Result<void>();
    }));
    std::sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) { return a.id < b.id; });
    return {};
  }

  /// Read and hashed again. False: it is not there.
  bool read(const Extent& extent, const IdBuilder& ids, std::vector<std::byte>& out) const {
    auto found = std::lower_bound(chunks_.begin(), chunks_.end(), extent.id,
                                  [](const Chunk& chunk, const Id& wanted) { return chunk.id < wanted; });
    if (found == chunks_.end() || found->id != extent.id) return false;
    auto fd = open_source(files_[found->file]);
    out.resize(extent.length);
    return fd && io::pread_exact(fd->get(), out, found->offset, "") && ids.of(out) == extent.id;
  }

 private:
  struct Chunk {
    Id id;
    uint32_t file = 0;
    uint64_t offset = 0;
  };

  Result<void> take(size_t file, uint64_t size, const ContentCuts& cuts, Repository& repository) {
    CKPT_TRY_ASSIGN(const UniqueFd fd, open_source(files_[file]));
    Cutter cutter = files_[file].pages ? Cutter(files_[file].fixed, 0) : Cutter(cuts);
    std::vector<Chunk> found;
    uint64_t at = 0;
    auto each = [&](ByteSpan piece) -> Result<void> {
      if (!is_zero(piece)) found.push_back({repository.ids().of(piece), static_cast<uint32_t>(file), at});
      at += piece.size();
      return {};
    };
    FileStream reader;
    CKPT_TRY(reader.read(fd.get(), 0, size, files_[file].path.string(), [&](ByteSpan data) -> Result<void> {
      CKPT_TRY(repository.cancel().check());
      return cutter.feed(data, each);
    }));
    CKPT_TRY(cutter.finish(each));
    std::lock_guard lock(mutex_);
    chunks_.insert(chunks_.end(), found.begin(), found.end());
    return {};
  }

  std::vector<SourceFile> files_;
  std::mutex mutex_;
  std::vector<Chunk> chunks_;
};

/// A part of a file that one thread writes.
struct Part {
  size_t entry = 0;
  uint64_t offset = 0, covered = 0;
  const Segment* segment = nullptr;  ///< null: the entry has the list
};

/// Content on its way into a file: short pieces put together to long writes, zeros left out.
class Writer {
 public:
  Writer(int fd, uint64_t offset, const std::string& subject) : fd_(fd), at_(offset), subject_(subject) {}
  Result<void> add(ByteSpan content) {
    const bool large = content.size() >= kWrite / 4;
    if (large || pending_.size() + content.size() > kWrite) CKPT_TRY(flush());
    if (large) {
      CKPT_TRY(io::pwrite_all(fd_, content, at_, subject_));
      at_ += content.size();
      return {};
    }
    pending_.insert(pending_.end(), content.begin(), content.end());
    return {};
  }
  Result<void> skip(uint64_t length) {
    CKPT_TRY(flush());
    at_ += length;
    return {};
  }
  Result<void> flush() {
    CKPT_TRY(io::pwrite_all(fd_, pending_, at_, subject_));
    at_ += pending_.size();
    pending_.clear();
    return {};
  }

 private:
  int fd_;
  uint64_t at_;
  const std::string& subject_;
  std::vector<std::byte> pending_;
};

class Pull {
 public:
  Pull(Repository& repository, const PullOptions& options, ProgressSink& progress)
      : repository_(repository), options_(options), progress_(progress) {}

  Result<PullReport> run(const std::string& name) {
    Stopwatch watch;
    CKPT_TRY_ASSIGN(report_.ref, repository_.ref(name));
    CKPT_TRY(repository_.load());
    subject_ = repository_.backend().subject(in_folder(kImages, name));
    CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(options_.dir, options_.force));
    ChunkReader reader(repository_);
    CKPT_TRY_ASSIGN(entries_, read_tree(report_.ref, reader, subject_));
    report_.fetched += reader.fetched();
    if (!options_.trust && holds_image()) CKPT_TRY(repository_.check_trusted());
    std::error_code ec;
    if (fs::is_directory(staged.destination(), ec)) CKPT_TRY(old_.look(staged.destination(), repository_));
    top_ = staged.path();
    CKPT_TRY(make_entries(staged));
    CKPT_TRY(write_files());
    CKPT_TRY(finish_entries());
    if (!options_.trust && holds_image()) CKPT_TRY(repository_.check_trusted());
    CKPT_TRY(repository_.cancel().check());
    CKPT_TRY(staged.commit(last_name()));
    report_.path = staged.destination() / report_.ref.path;
    if (report_.ref.path.empty()) report_.path = staged.destination();
    report_.reused = reused_, report_.us = watch.elapsed_us();
    return report_;
  }

 private:
  /// Whatever the store calls it: what has such a file could be restored.
  bool holds_image() const {
    return report_.ref.kind == "process" || std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
             return fs::path(entry.path).filename() == "manifest.sha256";
           });
  }

  /// The entry of the folder that makes all of it complete.
  std::string last_name() const {
    std::string out;
    for (const Entry& entry : entries_) {
      if (entry.path == "manifest.json") return entry.path;
      if (!entry.path.empty() && entry.path.find('/') == std::string::npos) out = entry.path;
    }
    return report_.ref.path.empty() ? out : report_.ref.path.substr(0, report_.ref.path.find('/'));
  }

  fs::path place_of(const Entry& entry) const { return entry.path.empty() ? top_ : top_ / entry.path; }

  Result<void> make_entries(const StagedDir& staged) {
    if (entries_.empty()) return fail(Code::kCorrupt, subject_, "has nothing in it");
    if (!entries_[0].path.empty()) CKPT_TRY(staged.share());
    bool found = report_.ref.path.empty();
    for (const Entry& entry : entries_) {
      const fs::path path = place_of(entry);
      found = found || entry.path == report_.ref.path;
      if (entry.type == Entry::Type::kFolder && !entry.path.empty() && ::mkdir(path.c_str(), 0700) != 0)
        return sys_error(path.string(), "cannot make a folder");
      if (entry.type != Entry::Type::kFile) continue;
      UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!fd) return sys_error(path.string(), "cannot be written");
      if (::ftruncate(fd.get(), static_cast<off_t>(entry.size)) != 0)
        return sys_error(path.string(), "cannot be made so large");
    }
    return found ? Result<void>() : fail(Code::kCorrupt, subject_, "does not have what it says that it is");
  }

  std::vector<Part> parts() const {
    std::vector<Part> out;
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      if (entry.type != Entry::Type::kFile) continue;
      if (entry.segments.empty()) out.push_back({i, 0, entry.size, nullptr});
      uint64_t at = 0;
      for (const Segment& segment : entry.segments) {
        out.push_back({i, at, segment.covered, &segment});
        at += segment.covered;
      }
    }
    return out;
  }

  Result<void> write_part(const Part& unit, ChunkReader& reader) {
    const Entry& entry = entries_[unit.entry];
    CKPT_TRY_ASSIGN(const UniqueFd fd, io::open_file(place_of(entry), O_WRONLY | O_NOFOLLOW));
    std::vector<std::byte> list;
    if (unit.segment != nullptr) {
      CKPT_TRY_ASSIGN(const ByteSpan read, reader.read(unit.segment->id, unit.segment->length, subject_));
      list.assign(read.begin(), read.end());
    }
    const std::string name = place_of(entry).string();
    Writer writer(fd.get(), unit.offset, name);
    std::vector<std::byte> old;
    const ByteSpan bytes = unit.segment != nullptr ? ByteSpan(list) : as_bytes(entry.list);
    CKPT_TRY(read_list(bytes, unit.covered, subject_, [&](const Extent& extent) -> Result<void> {
      CKPT_TRY(repository_.cancel().check());
      progress_.advance(extent.length);
      if (extent.id.empty()) return writer.skip(extent.length);
      if (old_.read(extent, repository_.ids(), old)) {
        reused_ += extent.length;
        return writer.add(old);
      }
      CKPT_TRY_ASSIGN(const ByteSpan chunk, reader.read(extent.id, static_cast<uint32_t>(extent.length), subject_));
      return writer.add(chunk);
    }));
    return writer.flush();
  }

  Result<void> write_files() {
    const std::vector<Part> all = parts();
    progress_.begin("pull", report_.ref.bytes);
    std::optional<WorkerPool> pool;
    make_helpers(0, pool);
    ChunkReaders readers(repository_);
    CKPT_TRY(side_by_side(pool ? &*pool : nullptr, all.size(), [&](size_t i) {
      return readers.with([&](ChunkReader& reader) { return write_part(all[i], reader); });
    }));
    report_.fetched += readers.fetched();
    return {};
  }

  /// Links come last: nothing was written through one. Folders get theirs once nothing changes in them any more.
  Result<void> finish_entries() {
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      const fs::path path = place_of(*entry);
      const bool link = entry->type == Entry::Type::kLink;
      if (link && ::symlink(entry->target.c_str(), path.c_str()) != 0)
        return sys_error(path.string(), "cannot make a link");
      if (link) CKPT_TRY(set_time(*entry));
    }
    for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
      if (entry->type == Entry::Type::kLink) continue;
      const fs::path path = place_of(*entry);
      if (::chmod(path.c_str(), entry->mode) != 0) return sys_error(path.string(), "cannot set its permissions");
      CKPT_TRY(set_time(*entry));
    }
    return {};
  }

  Result<void> set_time(const Entry& entry) {
    int64_t seconds = entry.mtime_ns / 1'000'000'000, rest = entry.mtime_ns % 1'000'000'000;
    if (rest < 0) --seconds, rest += 1'000'000'000;
    const timespec times[2] = {{static_cast<time_t>(seconds), static_cast<long>(rest)},
                               {static_cast<time_t>(seconds), static_cast<long>(rest)}};
    if (::utimensat(AT_FDCWD, place_of(entry).c_str(), times, AT_SYMLINK_NOFOLLOW) != 0)
      return sys_error(place_of(entry).string(), "cannot set its time");
    return {};
  }

  Repository& repository_;
  const PullOptions& options_;
  ProgressSink& progress_;
  PullReport report_;
  std::string subject_;
  std::vector<Entry> entries_;
  OldContent old_;
  fs::path top_;
  std::atomic<uint64_t> reused_{0};
};

}  // namespace

Result<PullReport> pull(Repository& repository, const std::string& name, const PullOptions& options,
                        ProgressSink& progress) {
  return unless_moved([&] { return Pull(repository, options, progress).run(name); });
}

}  // namespace ckpt::repository
