// What an image or a checkpoint consists of: folders, files and links, and of each file the chunks of its content.
// Little-endian.
//
//   list     records one after the other, front to back in the file
//              uint8 0, uint64 bytes                               zeros
//              uint8 1, uint32 length, uint32 count, byte[32] ids  chunks of that length each
//   tree     char[8] "CKPTTREE", uint32 version 1, uint32 0, uint64 entries
//            an entry: uint8 type (0 folder, 1 file, 2 link), uint8 0, uint16 mode, uint32 length of the path,
//              int64 time of the last change in ns since 1970, uint64 size (of a link: of its target), the path,
//              of a link its target, of a file
//                uint32 segments; where there are none: uint32 length of the list, the list
//                a segment: uint64 bytes of the file, uint32 length of its list, byte[32] id of the chunk with the list
//
// A folder's entry is before those of what is in it. The first may have an empty path: the folder that all is in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/repository/id.h"

namespace ckpt::repository {

constexpr size_t kMaxInlineList = 1024;  ///< what is longer becomes a chunk of its own
constexpr size_t kMaxList = 1 << 20;     ///< in one chunk
constexpr size_t kTreePiece = 1 << 20;   ///< chunks of a tree
constexpr uint64_t kMaxTree = uint64_t{256} << 20;
constexpr uint64_t kMaxEntries = 2'000'000;

/// Some bytes of a file: a chunk, or zeros where `id` is empty.
struct Extent {
  uint64_t length = 0;
  Id id;
};

class ListWriter {
 public:
  void add_zeros(uint64_t length);
  void add(const Id& id, uint32_t length);
  size_t size() const { return out_.size(); }
  uint64_t covered() const { return covered_; }
  std::string take();

 private:
  std::string out_;
  size_t run_ = 0;  ///< where the last record begins
  uint64_t covered_ = 0;
};

/// Front to back. kCorrupt: it is no list, or covers other than `covered` bytes.
Result<void> read_list(ByteSpan list, uint64_t covered, const std::string& subject,
                       const std::function<Result<void>(const Extent&)>& each);

struct Segment {
  uint64_t covered = 0;
  uint32_t length = 0;
  Id id;
};

struct Entry {
  enum class Type : uint8_t { kFolder = 0, kFile = 1, kLink = 2 };
  Type type = Type::kFile;
  uint16_t mode = 0;  ///< permissions alone: rwxrwxrwx
  int64_t mtime_ns = 0;
  uint64_t size = 0;
  std::string path, target;
  std::string list;  ///< of a file without segments
  std::vector<Segment> segments;
};

std::string encode_tree(const std::vector<Entry>& entries);
/// Hostile input: kCorrupt where a path leads elsewhere, is there twice, or lies in what is no folder before it, where
/// a link leads out, where segments are not as long as their file.
Result<std::vector<Entry>> parse_tree(ByteSpan bytes, const std::string& subject);

/// A relative path of plain parts.
bool is_inner_path(std::string_view path);
/// Whether a link at `path` with this target leads to what lies in the same folder or below.
bool link_stays_inside(std::string_view path, std::string_view target);

}  // namespace ckpt::repository
