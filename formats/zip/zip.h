// Stored zip archives inside a file or a part of one: `.pt` files and the items of `.distcp` files
// (formats.md 3.1, 3.8). The central directory is what counts; local headers are read for the length of their names
// only, and must agree.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::zip {

/// Bytes to read at random: a part of an open file, or memory. Borrows both.
class ByteSource {
 public:
  ByteSource(int fd, uint64_t offset, uint64_t size, std::string subject)
      : fd_(fd), offset_(offset), size_(size), subject_(std::move(subject)) {}
  ByteSource(ByteSpan memory, std::string subject)
      : memory_(memory), size_(memory.size()), subject_(std::move(subject)) {}

  uint64_t size() const { return size_; }
  const std::string& subject() const { return subject_; }
  /// Exactly out.size() bytes at `offset`, all inside the source (else kCorrupt).
  Result<void> read(uint64_t offset, MutableByteSpan out) const;

 private:
  int fd_ = -1;
  ByteSpan memory_;
  uint64_t offset_ = 0, size_ = 0;
  std::string subject_;
};

struct Record {
  std::string name;       ///< with the top directory
  uint64_t header = 0;    ///< of its local header, from the start of the archive
  uint64_t offset = 0;    ///< of its bytes, from the start of the archive
  uint64_t size = 0;      ///< of its content
  uint64_t stored = 0;    ///< of its bytes in the archive: as many, unless they are deflated
  bool deflated = false;
  uint32_t crc = 0;       ///< as the directory has it; torch can be told to leave it wrong
};

struct Archive {
  std::vector<Record> records;  ///< in the directory's order
  std::string top;              ///< what precedes the first `/` of the first name
  uint64_t directory = 0, directory_end = 0;  ///< of the central directory
  uint64_t tail = 0, end = 0;   ///< of the end records, the comment included

  /// The record `top/name`.
  const Record* find(std::string_view name) const;
};

/// kCorrupt: no zip, damaged, or hostile: entries that overlap or leave the archive, two of one name, headers that
/// disagree. kUnsupported: compression, encryption, several disks, named. With `deflate` records may be deflated.
Result<Archive> read_archive(const ByteSource& source, bool deflate = false);

/// What is odd about an archive that reads well: local headers and data descriptors that say something else than the
/// directory, and bytes that nothing refers to. kCorrupt only where the source ends.
struct Oddity {
  uint64_t offset = 0;  ///< from the start of the archive
  std::string message;  ///< a clause
};
Result<std::vector<Oddity>> find_oddities(const ByteSource& source, const Archive& archive);

/// These two are for records that are not deflated.
Result<std::vector<std::byte>> read_record(const ByteSource& source, const Record& record, uint64_t limit);
/// CRC-32 of the record's bytes. `each_block` sees every block's length and may stop the work.
Result<uint32_t> record_crc(const ByteSource& source, const Record& record,
                            const std::function<Result<void>(uint64_t)>& each_block = nullptr);

}  // namespace ckpt::zip
