// Zip archives laid out before their bytes are known: stored records, sizes in the local headers, Zip64 where a number
// needs it, each record's data aligned by a padding field as torch.save does (formats.md 3.1).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ckpt::zip {

constexpr uint32_t kTorchAlignment = 64;

/// Records lie one behind another; the directory follows the last. All offsets count from the start of the archive, and
/// data is aligned relative to it.
class Layout {
 public:
  /// alignment: a power of two, 32768 at most.
  void add(std::string name, uint64_t size, uint32_t alignment = kTorchAlignment);

  size_t count() const { return records_.size(); }
  uint64_t header_offset(size_t index) const { return records_[index].header; }
  uint64_t data_offset(size_t index) const { return records_[index].data; }
  uint64_t data_size(size_t index) const { return records_[index].size; }
  /// The two places of a record's CRC, each four bytes, little endian: in its header and in the directory.
  std::array<uint64_t, 2> crc_slots(size_t index) const;
  /// Where the directory starts: behind the last record.
  uint64_t directory_offset() const { return end_; }
  /// Of the whole archive.
  uint64_t size() const;

  /// The bytes from header_offset to data_offset.
  std::string header(size_t index, uint32_t crc) const;
  /// The bytes from directory_offset to the end; one CRC per record.
  std::string directory(std::span<const uint32_t> crcs) const;

 private:
  struct Record {
    std::string name;
    uint64_t size, header, data;
    uint64_t entry;  ///< in the directory, from its start
  };
  static std::string entry_field(const Record& record);
  std::string ends() const;
  std::vector<Record> records_;
  uint64_t end_ = 0, directory_end_ = 0;
};

}  // namespace ckpt::zip
