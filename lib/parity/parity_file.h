// What a member of a set keeps for the others, one file beside its folder: ckpt-parity(5).
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/digest.h"
#include "lib/parity/file_table.h"
#include "lib/parity/topology.h"

namespace ckpt::parity {

struct MemberRecord {
  uint32_t rank = 0;
  Place place;
  uint64_t bytes = 0;  ///< of its run
  Hash128 digest;      ///< of the CRC-32Cs of its data's blocks
  bool operator==(const MemberRecord&) const = default;
};

/// What all members of a set say alike.
struct SetRecord {
  uint64_t epoch = 0;  ///< of one protection: nanoseconds of a clock, and greater than all before
  Scheme scheme = Scheme::kXor;
  uint32_t parity = 1;
  uint32_t world = 0;  ///< ranks of all sets
  uint64_t chunk = 0;  ///< bytes of a chunk, a multiple of kBlockUnit
  uint32_t block = 0;  ///< what goes in one message and has one CRC, a multiple of kBlockUnit
  std::vector<MemberRecord> members;
  bool operator==(const SetRecord&) const = default;

  Result<ErasureCode> code() const { return ErasureCode::make(scheme, static_cast<uint32_t>(members.size()), parity); }
  uint64_t blocks() const { return (chunk + block - 1) / block; }
  /// Of block `i` of a chunk.
  size_t block_bytes(uint64_t i) const { return static_cast<size_t>(std::min<uint64_t>(block, chunk - i * block)); }
  std::vector<std::string> nodes() const;
};

/// CRC-32Cs of the blocks of some chunks, chunk by chunk.
using BlockSums = std::vector<uint32_t>;
Hash128 digest_of(const BlockSums& sums);

/// What `to_hex` (lib/base/digest.h) has made.
std::optional<Hash128> hash_from_hex(const std::string& text);

/// "NAME.ckpt-parity-EPOCH" beside the folder.
std::filesystem::path parity_path(const std::filesystem::path& folder, uint64_t epoch);
/// Those that lie there, the newest first.
Result<std::vector<std::filesystem::path>> find_parity_files(const std::filesystem::path& folder);
/// What protections that were killed have left beside the folder.
void remove_abandoned_parity(const std::filesystem::path& folder);

/// A file that is being written.
class ParityWriter {
 public:
  static Result<ParityWriter> create(const std::filesystem::path& path, uint64_t chunk);
  Result<void> write(uint32_t index, uint64_t offset, ByteSpan parity);
  Result<void> give_to(uint32_t user);
  /// The rest of the file. Not synced.
  Result<void> finish(const SetRecord& record, uint32_t member, const BlockSums& data, const BlockSums& parity,
                      const FileTable& table);

 private:
  UniqueFd fd_;
  std::string subject_;
  uint64_t chunk_ = 0;
};

/// A finished one. All but the parity itself has been checked.
class ParityFile {
 public:
  /// kCorrupt, kUnsupported (a later version).
  static Result<ParityFile> open(const std::filesystem::path& path);
  /// The same, of a file that is open. `path`: for messages.
  static Result<ParityFile> read(UniqueFd fd, const std::filesystem::path& path);

  const SetRecord& record() const { return record_; }
  uint32_t member() const { return member_; }
  uint32_t rank() const { return record_.members[member_].rank; }
  const FileTable& table() const { return table_; }
  const BlockSums& data_sums() const { return data_sums_; }
  const BlockSums& parity_sums() const { return parity_sums_; }
  const std::filesystem::path& path() const { return path_; }
  /// The user who owns it, and so can have made it up.
  uint32_t owner() const { return owner_; }
  uint32_t group() const { return group_; }
  /// A whole block. kCorrupt: its CRC is another one.
  Result<void> read_block(uint32_t index, uint64_t block, MutableByteSpan out) const;

 private:
  Result<void> read_footer(std::string_view text, uint64_t sums_at, uint64_t footer_at);

  std::filesystem::path path_;
  UniqueFd fd_;
  SetRecord record_;
  uint32_t member_ = 0, owner_ = 0, group_ = 0;
  FileTable table_;
  BlockSums data_sums_, parity_sums_;
};

/// A record as JSON, and back; the texts of records that are equal are equal. Nothing: it is none, or contradicts
/// itself.
std::string to_json(const SetRecord& record);
std::optional<SetRecord> record_from_json(std::string_view text);

}  // namespace ckpt::parity
