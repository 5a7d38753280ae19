// One worker's hands: writes pieces of a layout into files.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "lib/tensor/checksums.h"
#include "lib/tensor/write_files.h"

namespace ckpt::tensor {

/// Memory that workers share for encoded shards. Nobody holds some while waiting for more, so all of them get their
/// turn.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t bytes) : free_(bytes) {}
  void acquire(uint64_t bytes);
  void release(uint64_t bytes);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t free_;
};

/// What all workers share.
struct WriteState {
  const Layout& layout;
  const Selection& selection;
  const WriteControl& control;
  unsigned workers;
  FileCache& files;
  MemoryBudget budget;
  ChecksumLedger checksums;
  std::atomic<bool> clones{true};  ///< false once the file systems were seen not to share blocks
  bool drop_cache = false;         ///< what is written is larger than what the page cache can usefully keep
};

/// A CRC that belongs somewhere else in the file than beside its bytes.
struct LateCrc {
  uint64_t offset;
  uint32_t crc;
};

/// A box of a piece's tensor part and where its bytes go: large parts are written by several workers.
struct Extent {
  Region region;        ///< of the target
  uint64_t offset = 0;  ///< in the file
  uint64_t bytes = 0;
};

/// Zeros in [from, to), by blocks.
Result<void> write_zeros(io::OutputFile& out, uint64_t from, uint64_t to);

class PieceWriter {
 public:
  PieceWriter(WriteState& state, io::OutputFile& out) : state_(state), out_(out) {}
  ~PieceWriter() { release(); }
  PieceWriter(const PieceWriter&) = delete;
  PieceWriter& operator=(const PieceWriter&) = delete;

  /// Pieces in the order of their offsets; small ones are gathered. CRCs that belong elsewhere are added to `late`.
  Result<void> write(const Piece& piece, std::vector<LateCrc>& late);
  /// The bytes of one extent of the piece's tensor part; their CRC where the piece wants one, else 0.
  Result<uint32_t> write_extent(const Piece& piece, const Extent& extent);
  /// What of the piece is not its tensor part.
  Result<void> write_texts(const Piece& piece, uint32_t crc, std::vector<LateCrc>& late);
  /// Writes what was gathered: the last call.
  Result<void> flush();
  /// The source's records that it has read from, by their index in Catalog::checksums.
  const std::set<uint32_t>& records() const { return records_; }

 private:
  Result<void> gather(const Piece& piece, std::vector<LateCrc>& late);
  /// `key`: of the tensor; empty: a value that is none.
  Result<uint32_t> copy_run(const std::string& key, const FileRange& run, uint64_t to, bool wants_crc);
  Result<uint32_t> copy_region(const Part& part, const Region& region, uint64_t to, bool wants_crc);
  Result<void> fill(const Part& part, const Region& region, MutableByteSpan out);
  Result<void> copy_file(const FileRange& range, uint64_t to);
  Result<void> put(ByteSpan data, uint64_t to);
  Result<void> skip_to(uint64_t offset);
  void wrote(uint64_t bytes, uint64_t to);
  uint64_t lease(const Target& target, uint64_t region_bytes);
  void release();
  bool compares() const { return !state_.checksums.empty(); }
  void note_run(const std::string& key, const FileRange& run, uint32_t crc);
  void note_tensor(const Target& target);

  WriteState& state_;
  io::OutputFile& out_;
  std::vector<std::byte> gathered_, block_, corner_;
  uint64_t gathered_at_ = 0;
  std::optional<uint64_t> end_;  ///< of the last piece
  std::optional<TargetReader> reader_;
  uint64_t leased_ = 0;
  std::set<uint32_t> records_;
  const Tensor* noted_ = nullptr;  ///< the last tensor whose records are all in `records_`
  uint64_t unsynced_ = 0, unsynced_at_ = 0;
};

}  // namespace ckpt::tensor
