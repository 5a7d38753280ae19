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
#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"
#include "lib/tensor/piece_writer.h"

namespace ckpt::tensor {

namespace {

constexpr uint64_t kUnit = uint64_t{64} << 20;

/// A file under way. Opened by the first of its units, finished by the last.
struct Open {
  const OutputFile* file = nullptr;
  size_t last =
      0;  ///< of the pieces that units write: a directory of text alone, which may hold CRCs, comes at the end
  std::mutex mutex;
  std::unique_ptr<io::OutputFile> out;
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
  FilesWriter(WriteState& state, io::OutputFolder& folder) : state_(state), folder_(folder) {}

  Result<void> plan(std::span<const size_t> which) {
    const Layout& layout = state_.layout;
    for (size_t index : which) {
      Open& open = open_.emplace_back();
      open.file = &layout.files[index];
      CKPT_TRY_ASSIGN(open.last, end_of_units(*open.file));
      size_t first = open.file->first;
      uint64_t bytes = 0;
      auto close = [&](size_t last) {
        if (last > first) add({&open, first, last, nullptr, 0});
        first = last;
        bytes = 0;
      };
      for (size_t i = open.file->first; i < open.last; ++i) {
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
      close(open.last);
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

  Result<size_t> end_of_units(const OutputFile& file) const {
    if (file.last - file.first < 2) return file.last;
    CKPT_TRY_ASSIGN(const Piece piece, state_.layout.piece(file.last - 1));
    const bool text = std::all_of(piece.parts.begin(), piece.parts.end(),
                                  [](const Part& part) { return part.target == nullptr && part.range.length == 0; });
    return file.last - (text ? 1 : 0);
  }

  /// Where the piece `index` of the file begins; behind the last: where the file ends.
  Result<uint64_t> begin_of(const OutputFile& file, size_t index) const {
    if (index >= file.last) return file.size;
    CKPT_TRY_ASSIGN(const Piece piece, state_.layout.piece(index));
    return piece.offset;
  }

  /// Zeros from `from` to where the piece `index` begins, where the output wants all bytes written.
  Result<void> pad(Open& open, uint64_t from, size_t index) const {
    if (open.out->descriptor() >= 0) return {};
    CKPT_TRY_ASSIGN(const uint64_t to, begin_of(*open.file, index));
    return write_zeros(*open.out, from, to);
  }

  Result<io::OutputFile*> open(Open& open) {
    std::lock_guard lock(open.mutex);
    if (!open.out) {
      CKPT_TRY_ASSIGN(open.out, folder_.create(open.file->name, open.file->size));
      CKPT_TRY(pad(open, 0, open.file->first));
    }
    return open.out.get();
  }

  Result<void> write(const WriteUnit& unit) {
    trace::Span span(trace::kept(unit.open->file->name));
    CKPT_TRY_ASSIGN(io::OutputFile* const out, open(*unit.open));
    PieceWriter writer(state_, *out);
    std::vector<LateCrc> late;
    if (unit.split != nullptr) CKPT_TRY(write_extent(unit, writer, late));
    uint64_t end = 0;
    for (size_t i = unit.first; i < unit.last && unit.split == nullptr; ++i) {
      CKPT_TRY_ASSIGN(const Piece piece, state_.layout.piece(i));
      CKPT_TRY(writer.write(piece, late));
      end = piece.offset + piece.size();
    }
    CKPT_TRY(writer.flush());
    if (unit.split == nullptr && unit.last > unit.first) CKPT_TRY(pad(*unit.open, end, unit.last));
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
    CKPT_TRY(writer.write_texts(split.piece, crc, late));
    return pad(*unit.open, split.piece.offset + split.piece.size(), unit.first + 1);
  }

  Result<void> close(Open& open, const std::vector<LateCrc>& late, const std::set<uint32_t>& records) {
    {
      std::lock_guard lock(open.mutex);
      open.late.insert(open.late.end(), late.begin(), late.end());
      open.records.insert(records.begin(), records.end());
      if (--open.units_left > 0) return {};
    }
    CKPT_TRY(write_late(open));
    // A file of a conversion that goes on later is taken as it is: nothing wrong may be in it.
    CKPT_TRY(state_.checksums.settle(open.records, state_.control.cancel));
    if (!state_.control.allow_damage) CKPT_TRY(state_.checksums.check());
    CKPT_TRY(open.out->finish());
    if (state_.drop_cache) ::posix_fadvise(open.out->descriptor(), 0, 0, POSIX_FADV_DONTNEED);
    open.out.reset();
    return {};
  }

  /// CRCs that were not known when their places were passed, and the directory that may hold them.
  Result<void> write_late(Open& open) {
    std::string text;
    uint64_t at = open.file->size;
    if (open.last < open.file->last) {
      CKPT_TRY_ASSIGN(const Piece piece, state_.layout.piece(open.last));
      for (const Part& part : piece.parts) text += part.text;
      at = piece.offset;
    }
    for (const LateCrc& one : open.late) {
      std::array<std::byte, 4> bytes;
      std::memcpy(bytes.data(), &one.crc, sizeof one.crc);
      if (one.offset >= at && one.offset + bytes.size() <= at + text.size())
        std::memcpy(text.data() + (one.offset - at), bytes.data(), bytes.size());
      else
        CKPT_TRY(open.out->write(bytes, one.offset));
    }
    CKPT_TRY(open.out->write(as_bytes(text), at));
    state_.control.progress.advance(text.size());
    if (open.last == open.file->last) return {};
    return pad(open, at + text.size(), open.file->last);
  }

  WriteState& state_;
  io::OutputFolder& folder_;
  std::deque<Open> open_;
  std::deque<Split> splits_;
  std::vector<WriteUnit> units_;
};

}  // namespace

Result<std::vector<Finding>> write_data_files(const Layout& layout, const Selection& selection, io::OutputFolder& out,
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
  FilesWriter writer(state, out);
  CKPT_TRY(writer.plan(which));
  CKPT_TRY(writer.run());
  return state.checksums.take_findings();
}

Result<void> write_generated_file(const OutputFile& file, io::OutputFolder& out, const WriteControl& control) {
  CKPT_TRY(control.cancel.check());
  CKPT_TRY_ASSIGN(const std::unique_ptr<io::OutputFile> written, out.create(file.name, std::nullopt));
  uint64_t at = 0;
  CKPT_TRY(file.generate([&](std::string_view block) -> Result<void> {
    CKPT_TRY(written->write(as_bytes(block), at));
    at += block.size();
    return {};
  }));
  return written->finish();
}

}  // namespace ckpt::tensor
