// The neutral model: what a checkpoint holds and where its bytes lie, whatever its format. A reader fills a Catalog
// without reading a tensor byte; a plan joins two grids; a writer lays bytes out. Terms are Megatron's: global shape,
// global offset, shard; a ShardedObject is an opaque blob at a place of a grid.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/tensor/dtype.h"

namespace ckpt::tensor {

using Shape = std::vector<uint64_t>;

/// Elements of a shape (1 for a scalar); nothing on overflow.
std::optional<uint64_t> element_count(const Shape& shape);

/// How stored bytes become a shard's little-endian row-major bytes.
enum class Encoding : uint8_t {
  kRaw,      ///< they are already: the kernel can copy them
  kEncoded,  ///< a codec, a filter, strides, another byte order or F order: `Catalog::decoder` makes them so
  kFill,     ///< nothing is stored: every element is `Tensor::fill_value` (zarr's absent chunks)
};

/// A range of a file of the checkpoint.
struct FileRange {
  uint32_t file = 0;    ///< index into Catalog::files
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// One stored piece of a tensor: the box [offset, offset + shape) of the global tensor.
/// Zarr's edge chunks are stored whole: then `stored_shape` is larger than `shape` (row-major box whose leading corner
/// counts). Empty `stored_shape`: same as `shape`.
struct Shard {
  Shape offset;
  Shape shape;
  Shape stored_shape;
  FileRange where;             ///< kRaw: exactly item_size * elements(stored) bytes. kEncoded: the encoded bytes.
                               ///< length 0 with elements: not looked up (ReadOptions::locate_data)
  FileRange item;              ///< the record around it, for `verify` (torch_dist: the zip item); length 0: none
  Encoding encoding = Encoding::kRaw;
  uint32_t layout = 0;         ///< kEncoded: the decoder's own number for how it is encoded
};

/// A step into a nested state dict: a dict's key, which may be a number, or a place in a list.
struct PathStep {
  enum class Kind : uint8_t { kName, kNumber, kIndex } kind = Kind::kName;
  std::string name;            ///< kName
  int64_t number = 0;          ///< kNumber, kIndex
  std::string text() const { return kind == Kind::kName ? name : std::to_string(number); }
};
/// Where a value lies in the nested state dict whose keys were joined by dots. It counts while the steps still make the
/// key
/// (`leads_to`): who renames a key takes it out of its nest. Empty: at the top, under its key.
using KeyPath = std::vector<PathStep>;
/// Steps joined by dots. Escaped: dots and backslashes in a name get a backslash before them, and so does a name that
/// reads like a number, so that no two paths of one object have the same text.
std::string join_path(const KeyPath& path, bool escaped);
bool leads_to(const KeyPath& path, std::string_view key);

struct Tensor {
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;                 ///< global
  std::vector<Shard> shards;   ///< any order
  std::vector<std::byte> fill_value;  ///< one element, little endian; empty unless a shard is kFill
  KeyPath path;
  Shape rows;  ///< Megatron 0.8 to 0.15 stored it flattened, one row for each of so many parts along each axis; empty:
               ///< not so
  uint64_t bytes() const;      ///< of the logical tensor
};

/// An opaque object (ShardedObject): never unpickled to be carried.
struct Object {
  std::string key;             ///< full name: "rng_state/shard_0.1_1.2", or a plain key of torch's own checkpoints
  FileRange where;
  bool wrapped_in_list = false;///< Megatron's torch_dist stores a list of one element, zarr the object itself
  std::vector<std::byte> inline_bytes;  ///< instead of `where` when not empty (encoded items already decoded)
  KeyPath path;
};

struct SourceFile {
  std::string path;            ///< relative to the checkpoint, or its own name for a single file
  uint64_t size = 0;
};

/// Turns an encoded shard into raw bytes. Thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// `encoded`: the bytes of shard.where. `out`: item_size * elements(stored or shape) bytes, all of it is written.
  /// Damage is kCorrupt; never more memory than `out` and a scratch of the same size.
  virtual Result<void> decode(const Tensor& tensor, const Shard& shard, ByteSpan encoded,
                              MutableByteSpan out) const = 0;
};

/// Something wrong (or, as a warning, odd) with a checkpoint, at a place that a person can look at.
struct Finding {
  std::string key;                 ///< tensor or object; empty: the checkpoint as a whole
  std::string file;                ///< relative to the checkpoint; empty: none
  std::optional<uint64_t> offset;  ///< bytes into `file`
  std::string message;             ///< a clause: "is missing"
  bool warning = false;
  bool difference = false;         ///< nothing is damaged: another checkpoint has it otherwise
  /// "file at byte 12: key: message", unescaped.
  std::string text() const;
};

/// An entry of a checkpoint that its reader cannot hand out. It is never passed over: whoever writes, checks or
/// compares a checkpoint names it, unless the user named it to be left out.
struct Unreadable {
  std::string key;
  std::string why;         ///< "dtype |O (Python objects) is not read"
  bool is_object = false;  ///< it would be an Object, not a Tensor
  FileRange pickle = {};   ///< of an array of objects: the pickle that its loader would open; length 0: none
  uint64_t inflated = 0;   ///< bytes of content of a deflated `pickle`, numpy's header included; 0: it is not deflated
  std::string text() const { return key + ": " + why; }
};

/// Bytes of a file whose CRC-32 the checkpoint has. 0 where its content's is another: the writer was told not to
/// compute it.
struct Checksum {
  FileRange where;
  uint32_t crc = 0;
  std::string record;      ///< its name, for people
  /// What verify says of it, and convert with the same words, when the content's CRC is another one.
  std::string differs() const { return "the CRC of record " + record + " differs"; }
};

/// What a reader found. Nothing here holds tensor bytes.
struct Catalog {
  std::string format;               ///< "zarr", "torch_dist", "dcp", "safetensors", "zarr2" (foreign arrays), ...
  std::filesystem::path root;       ///< folder, or the file itself
  std::vector<SourceFile> files;
  std::vector<Tensor> tensors;      ///< sorted by key
  std::vector<Object> objects;      ///< sorted by key
  std::vector<FileRange> empty_items;  ///< records of shards without elements: only `verify` asks whose bytes they are
  std::optional<FileRange> common;  ///< common.pt, or the object that replaces it from Megatron 0.19 on
  bool common_wrapped_in_list = false;
  std::string metadata_json;  ///< format-specific facts for `inspect` and `load-metadata`, a JSON object; may be empty
  std::vector<std::string> warnings;///< things a person should know: "dtype <V2 taken as bfloat16"
  std::vector<Finding> damage;      ///< only with ReadOptions::tolerate_damage: what is missing or wrong
  std::vector<Unreadable> unsupported;   ///< `tensors` and `objects` lack them
  std::vector<Checksum> checksums;  ///< of what raw shards lie in; sorted by place, disjoint. Only with locate_data
  std::shared_ptr<const Decoder> decoder;  ///< null: every shard is kRaw

  /// Opens files[index]: below the root, regular. A link is followed, one to a folder on the way is not.
  Result<UniqueFd> open_file(uint32_t index) const;
};

/// Damage as an error (kCorrupt): the first of the findings that is no warning, the next ones as causes. There must be
/// one.
Error damage_error(const Catalog& catalog, const std::vector<Finding>& findings);

/// Checks that the shards of a tensor lie inside it, do not overlap and cover it. Empty: all right; else findings as
/// sentences that name key and box. O(n log n) for grids, bounded work for hostile ones.
std::vector<std::string> check_shards(const Tensor& tensor);

}  // namespace ckpt::tensor
