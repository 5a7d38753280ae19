// Packs: files of some tens of MiB in which chunks lie, with a table of them at the end. Little-endian.
//
//   pack     char[8] "CKPTPACK", uint32 version 1, uint32 0; the groups' bytes; the table; the trailer
//   table    uint32 groups, uint32 chunks
//            a group: uint64 offset, uint32 stored length, uint32 length, uint32 chunks, uint32 codec (0 raw, 1 zstd)
//            a chunk: uint32 length, byte[32] id; those of the first group first, in the order in which they lie in it
//   trailer  uint32 length of the table, uint32 version 1, byte[32] SHA-256 of the table and these two, char[8]
//            "CKPTPEND"
//
//   index    char[8] "CKPTINDX", uint32 version 1, uint32 packs
//            a pack: char[41] name, uint64 size of the pack, uint32 length of its table, the table
//            byte[32] SHA-256 of all before
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/repository/id.h"

namespace ckpt::repository {

constexpr size_t kMaxChunk = 4 << 20;
constexpr size_t kMaxGroup = 8 << 20;  ///< before compression
constexpr uint64_t kMaxPack = uint64_t{1} << 30;
constexpr uint64_t kMaxIndex = uint64_t{256} << 20;  ///< of one object
constexpr size_t kPackHeader = 16;
constexpr size_t kPackTrailer = 48;
constexpr size_t kPackName = 41;  ///< 32 hex digits of the push, "-", 8 of the number

enum class Codec : uint32_t { kRaw = 0, kZstd = 1 };

/// Chunks that were compressed together: who wants one reads all of them.
struct Group {
  uint64_t offset = 0;
  uint32_t stored = 0, length = 0;
  uint32_t first = 0, count = 0;  ///< indices of its chunks
  Codec codec = Codec::kRaw;
};

struct PackTable {
  std::vector<Group> groups;
  std::vector<uint32_t> lengths;  ///< of the chunks
  std::vector<Id> ids;

  /// Of the chunk, and where it begins in the group once that is decompressed.
  const Group& group_of(size_t chunk) const;
  size_t offset_in_group(const Group& group, size_t chunk) const;
  uint64_t bytes() const;  ///< of all chunks
};

bool is_pack_name(std::string_view name);
std::string pack_name(const std::string& push, uint32_t number);

std::string pack_header();
std::string encode_table(const PackTable& table);
/// `pack_size`: of the whole pack; the groups must lie between its header and the table. Hostile input: kCorrupt.
Result<PackTable> parse_table(ByteSpan bytes, uint64_t pack_size, const std::string& subject);
std::string pack_trailer(std::string_view table);
struct Trailer {
  uint32_t table = 0;  ///< its length
  uint32_t version = 0;
  Id digest;
};
/// Of the last kPackTrailer bytes. kCorrupt.
Result<Trailer> parse_trailer(ByteSpan bytes, uint64_t pack_size, const std::string& subject);
/// kCorrupt: the table is not the one that the trailer is of. kUnsupported: it is, of another version.
Result<void> check_trailer(const Trailer& trailer, ByteSpan table, const std::string& subject);

struct IndexedPack {
  std::string name;
  uint64_t size = 0;
  PackTable table;
};
/// Builds one index object.
class IndexWriter {
 public:
  void add(const std::string& name, uint64_t size, std::string_view table);
  bool empty() const { return packs_ == 0; }
  size_t size() const { return body_.size(); }
  std::string finish();

 private:
  std::string body_;
  uint32_t packs_ = 0;
};
Result<std::vector<IndexedPack>> parse_index(ByteSpan bytes, const std::string& subject);

}  // namespace ckpt::repository
