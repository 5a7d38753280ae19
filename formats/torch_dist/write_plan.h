// What a torch_dist checkpoint made from a catalog will consist of: every item's file, offset and length, known before a
// byte is written. The same catalog and options give the same plan, whatever the number of workers.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/tensor/catalog.h"
#include "lib/tensor/grid.h"

namespace ckpt::torch_dist {

struct PlanOptions {
  uint64_t shard_size = 0;                       ///< bytes; 0: the source's own pieces
  unsigned files = 0;                            ///< .distcp files; 0: by size
  uint64_t max_memory = uint64_t{256} << 20;     ///< bytes, of the whole process
  std::function<bool(std::string_view)> wanted;  ///< by key of a tensor or object; empty: all
};

/// One .distcp item: a piece of a tensor, or an object.
struct Item {
  bool is_object = false;
  uint32_t subject = 0;  ///< index into Plan::tensors or ::objects
  uint64_t piece = 0;    ///< of the tensor's grid
  uint64_t offset = 0, length = 0;  ///< in its file
};

struct FilePlan {
  std::string name;            ///< "__0_0.distcp"
  size_t first = 0, last = 0;  ///< items [first, last), in the order of their offsets
  uint64_t size = 0;
};

/// How the common state gets across.
enum class CommonAction : uint8_t {
  kNone,    ///< a plain torch checkpoint has none
  kCopy,    ///< common.pt, byte for byte
  kUnwrap,  ///< out of Megatron 0.19's object of one list
  kEmpty,   ///< the source has none, yet loaders want the file: an empty dict
};

struct Plan {
  const tensor::Catalog* source = nullptr;
  PlanOptions options;
  bool megatron = true;             ///< with metadata.json and common.pt; otherwise a plain torch checkpoint
  std::vector<uint32_t> tensors, objects;  ///< what is written: indices into the catalog
  std::vector<tensor::Grid> grids;  ///< one per entry of `tensors`
  std::vector<Item> items;          ///< tensors in order, then objects
  std::vector<FilePlan> files;
  CommonAction common = CommonAction::kNone;
  std::string common_file;          ///< content, for kUnwrap and kEmpty
  uint64_t payload_bytes = 0;       ///< tensor and object bytes, without archives around them
  uint64_t total_bytes = 0;         ///< on disk, an upper estimate within the metadata's size
  std::vector<std::string> notes;   ///< what a person should know
  size_t excluded = 0;              ///< keys left out by `wanted`

  const tensor::Tensor& tensor(const Item& item) const { return source->tensors[tensors[item.subject]]; }
  const tensor::Object& object(const Item& item) const { return source->objects[objects[item.subject]]; }
  tensor::Region region(const Item& item) const { return grids[item.subject].piece(tensor(item), item.piece); }
  /// The file that makes the checkpoint complete.
  const char* last_file() const { return megatron ? "metadata.json" : ".metadata"; }
};

/// `source` must come from a read with locate_data and outlive the plan. kAnswerNo: shards missing, overlapping or outside
/// their files. kUsage: keys that the target cannot name, each one listed. kNoRoom: an encoded shard that does not fit
/// into max_memory. kUnsupported: something of the source cannot be carried over.
Result<Plan> plan_write(const tensor::Catalog& source, const PlanOptions& options);

/// Memory that decoding a shard takes: encoded, decoded and the codec's scratch.
uint64_t decode_memory(const tensor::Tensor& tensor, const tensor::Shard& shard);
/// The largest of them over the tensor's shards; 0 where nothing is encoded.
uint64_t decode_memory(const tensor::Tensor& tensor);
/// What of max_memory may hold encoded shards: the rest is buffers, the plan and the program.
uint64_t decode_budget(uint64_t max_memory);

}  // namespace ckpt::torch_dist
