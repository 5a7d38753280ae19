// metadata.json: what makes a folder a Megatron-Core distributed checkpoint, written last (formats.md 1.1, 1.2).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::formats {

struct MegatronMetadata {
  std::string backend;  ///< "zarr" or "torch_dist"
  std::string json;     ///< the file's own text, checked to be an object
};

/// Nothing when the folder has no metadata.json, or one that some other program wrote (no "sharded_backend" in it).
/// kCorrupt: not JSON, or wrong types. kUnsupported: a backend or version of which nothing is known.
Result<std::optional<MegatronMetadata>> read_megatron_metadata(const std::filesystem::path& dir);

/// For the table of formats: cheap, false on any error.
bool has_megatron_backend(const std::filesystem::path& dir, const std::string& backend);

/// A ShardedObject's place: "shard_0.1_1.2" -> offsets {0, 1}, shape {1, 2}.
struct ObjectPlace {
  std::vector<uint64_t> offset, shape;
};
std::optional<ObjectPlace> parse_object_place(std::string_view name);
std::string object_place_name(const ObjectPlace& place);

}  // namespace ckpt::formats
