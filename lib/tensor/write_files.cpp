#include "lib/tensor/write_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <mutex>

#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/base/worker_pool.h"
#include "lib/tensor/piece_writer.h"

namespace ckpt::tensor {

namespace fs = std::filesystem;

namespace {

constexpr unsigned kFileMode = 0666;  // less the umask: a checkpoint is shared like any other file
constexpr uint64_t kUnit = uint64_t{64} << 20;

Result<UniqueFd> create(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / (name + ".part");
  if (name.find('/') != std::string::npos) {
    std::error_code ec;
    fs::create_directories(path.parent_path(), ec);
    if (ec) return sys_error(ec.value(), path.parent_path().string(), "cannot make the folder");
  }
  return io::open_file(path, O_RDWR | O_CREAT | O_TRUNC, kFileMode);
}

Result<void> finish(const UniqueFd& fd, const fs::path& folder, const std::string& name, bool durable) {
  if (durable) CKPT_TRY(io::sync_fd(fd.get(), name));
  const fs::path path = folder / name;
  if (::rename((path.string() + ".part").c_str(), path.c_str()) != 0)
    return sys_error(path.string(), "cannot rename into place");
  return {};
}

/// A file under way. Opened by the first of its units, finished by the last.
struct Open {
  const OutputFile* file = nullptr;
  std::mutex mutex;
  UniqueFd fd;
  size_t units_left = 0;
  std::vector<LateCrc> late;
  std::set<uint32_t> records;  ///< of the source, that it was made of
};

/// A piece too large for one worker: its tensor part in extents.
struct Split {
  Piece piece;
  std::vector<Extent> extents;
  std::vector<uint32_t> crcs;
  size_t left = 0;  ///< guarded by the file's mutex
};

/// What one worker does in one go: pieces [first, last) of a file, or one extent of a piece.
struct WriteUnit {
  Open* open = nullptr;
  size_t first = 0, last = 0;
  Split* split = nullptr;
  size_t extent = 0;
};

/// The tensor part in extents of about kUnit; none where it is not worth it or must stay whole.
Result<std::optional<Split>> split(const Layout& layout, const Selection& selection, size_t index) {
  if (layout.piece_size(index) < 2 * kUnit) return std::optional<Split>();
  Split out;
  CKPT_TRY_ASSIGN(out.piece, layout.piece(index));
  uint64_t at = out.piece.offset;
  for (const Part& part : out.piece.parts) {
    if (part.target != nullptr && (part.padded.empty() || part.padded == part.region.shape)) {
      const uint32_t item = item_size(part.target->dtype);
      RowMajorBlocks blocks(part.region.shape, item, block_bytes(selection, *part.target, part.region.shape, kUnit));
      for (uint64_t to = at; auto block = blocks.next();) {
        for (size_t axis = 0; axis < block->offset.size(); ++axis) block->offset[axis] += part.region.offset[axis];
        const uint64_t bytes = element_count(block->shape).value_or(0) * item;
        out.extents.push_back({std::move(*block), to, bytes});
        to += bytes;
      }
    }
    at += part.size();
  }
  if (out.extents.size() < 2) return std::optional<Split>();
  out.crcs.resize(out.extents.size());
  out.left = out.extents.size();
  return std::optional(std::move(out));
}

class FilesWriter {
 public:
  FilesWriter(WriteState& state, const fs::path& folder) : state_(state), folder_(folder) {}

  Result<void> plan(std::span<const size_t> which) {
    const Layout& layout = state_.layout;
    for (size_t index : which) {
      Open& open = open_.emplace_back();
      open.file = &layout.files[index];
      size_t first = open.file->first;
      uint64_t bytes = 0;
      auto close = [&](size_t last) {
        if (last > first) add({&open, first, last, nullptr, 0});
        first = last;
        bytes = 0;
      };
      for (size_t i = open.file->first; i < open.file->last; ++i) {
        CKPT_TRY_ASSIGN(std::optional<Split> large, split(layout, state_.selection, i));
        if (large) {
          close(i);
          Split& kept = splits_.emplace_back(std::move(*large));
          for (size_t k = 0; k < kept.extents.size(); ++k) add({&open, i, i + 1, &kept, k});
          first = i + 1;
          continue;
        }
        bytes += layout.piece_size(i);
        if (bytes >= kUnit) close(i + 1);
      }
      close(open.file->last);
      if (open.units_left == 0) add({&open, first, first, nullptr, 0});  // a file of nothing
    }
    return {};
  }

  Result<void> run() {
    WorkerPool pool(state_.workers);
    for (const WriteUnit& unit : units_) {
      if (!pool.submit([this, &unit] { return write(unit); })) break;
    }
    return pool.finish();
  }

 private:
  void add(WriteUnit unit) {
    ++unit.open->units_left;
    units_.push_back(unit);
  }

  Result<int> open(Open& open) {
    std::lock_guard lock(open.mutex);
    if (!open.fd) {
      CKPT_TRY_ASSIGN(open.fd, create(folder_, open.file->name));
      if (::ftruncate(open.fd.get(), static_cast<off_t>(open.file->size)) != 0)
        return sys_error(open.file->name, "cannot set its size");
    }
    return open.fd.get();
  }

  Result<void> write(const WriteUnit& unit) {
    CKPT_TRY_ASSIGN(const int fd, open(*unit.open));
    PieceWriter writer(state_, fd, unit.open->file->name);
    std::vector<LateCrc> late;
    if (unit.split != nullptr) CKPT_TRY(write_extent(unit, writer, late));
    for (size_t i = unit.first; i < unit.last && unit.split == nullptr; ++i) {
      CKPT_TRY_ASSIGN(const Piece piece, state_.layout.piece(i));
      CKPT_TRY(writer.write(piece, late));
    }
    CKPT_TRY(writer.flush());
    return close(*unit.open, late, writer.records());
  }

  Result<void> write_extent(const WriteUnit& unit, PieceWriter& writer, std::vector<LateCrc>& late) {
    Split& split = *unit.split;
    CKPT_TRY_ASSIGN(split.crcs[unit.extent], writer.write_extent(split.piece, split.extents[unit.extent]));
    {
      std::lock_guard lock(unit.open->mutex);
      if (--split.left > 0) return {};
    }
    uint32_t crc = split.crcs[0];
    for (size_t i = 1; i < split.crcs.size(); ++i) crc = crc32_combine(crc, split.crcs[i], split.extents[i].bytes);
    return writer.write_texts(split.piece, crc, late);
  }

  Result<void> close(Open& open, const std::vector<LateCrc>& late, const std::set<uint32_t>& records) {
    {
      std::lock_guard lock(open.mutex);
      open.late.insert(open.late.end(), late.begin(), late.end());
      open.records.insert(records.begin(), records.end());
      if (--open.units_left > 0) return {};
    }
    for (const LateCrc& one : open.late) {
      std::array<std::byte, 4> bytes;
      std::memcpy(bytes.data(), &one.crc, sizeof one.crc);
      CKPT_TRY(io::pwrite_all(open.fd.get(), bytes, one.offset, open.file->name));
    }
    // A file of a conversion that goes on later is taken as it is: nothing wrong may be in it.
    CKPT_TRY(state_.checksums.settle(open.records, state_.control.cancel));
    if (!state_.control.allow_damage) CKPT_TRY(state_.checksums.check());
    CKPT_TRY(finish(open.fd, folder_, open.file->name, state_.control.durable));
    if (state_.drop_cache) ::posix_fadvise(open.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    open.fd.reset();
    return {};
  }

  WriteState& state_;
  const fs::path& folder_;
  std::deque<Open> open_;
  std::deque<Split> splits_;
  std::vector<WriteUnit> units_;
};

}  // namespace

Result<std::vector<Finding>> write_data_files(const Layout& layout, const Selection& selection, const fs::path& folder,
                                              std::span<const size_t> which, const WriteControl& control) {
  const unsigned workers = WorkerPool::threads_for(control.workers);
  FileCache files(*selection.source);
  WriteState state{layout,
                   selection,
                   control,
                   workers,
                   files,
                   MemoryBudget(decode_budget(control.max_memory)),
                   {*selection.source, files}};
  uint64_t bytes = 0;
  for (size_t index : which) bytes += layout.files[index].size;
  const auto memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  state.drop_cache = control.durable && bytes > memory / 2;
  control.progress.begin("convert", bytes);
  FilesWriter writer(state, folder);
  CKPT_TRY(writer.plan(which));
  CKPT_TRY(writer.run());
  return state.checksums.take_findings();
}

Result<void> write_generated_file(const OutputFile& file, const fs::path& folder, const WriteControl& control) {
  CKPT_TRY(control.cancel.check());
  CKPT_TRY_ASSIGN(UniqueFd fd, create(folder, file.name));
  CKPT_TRY(file.generate([&](std::string_view block) { return io::write_all(fd.get(), as_bytes(block), file.name); }));
  return finish(fd, folder, file.name, control.durable);
}

}  // namespace ckpt::tensor
