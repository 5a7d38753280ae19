// The table of formats: who recognises a path, who reads it. Explicit, no static initialisers.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/result.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

struct ReadOptions {
  uint64_t max_metadata_bytes = uint64_t{1} << 30;
  /// Also look at the data files' record directories (zip items) so that every shard has its exact byte range. Without
  /// it only metadata is opened: `load-metadata` and `inspect` must work with data files that cannot be read.
  bool locate_data = true;
  /// Damage of the data (a missing file, a bad zip item) goes to Catalog::damage and reading goes on. Without it the
  /// first one is the error. Metadata that cannot be read is an error either way.
  bool tolerate_damage = false;
  /// A name of `formats()`, where a folder holds two; "auto": told by content.
  std::string from = "auto";
};

struct Format {
  std::string_view name;
  std::string_view summary;
  /// Cheap: looks at names and first bytes only.
  bool (*recognises)(const std::filesystem::path& path);
  Result<tensor::Catalog> (*read)(const std::filesystem::path& path, const ReadOptions& options);
};

/// In the order in which they are asked.
std::span<const Format> formats();

/// Cheap, like the table's own look: whether a path is a checkpoint, one of a kind that is not read and one that was
/// not finished included. A folder of many of them is none itself.
bool looks_like_checkpoint(const std::filesystem::path& path);
/// The name of the format that recognises it; empty: none does.
std::string_view format_name_of(const std::filesystem::path& path);

/// Opens a checkpoint of the format that `options` name. kUsage: no such format. kNotFound: no such path. kUnsupported:
/// nothing recognises it, or a known but unhandled kind (named). kCorrupt: damaged or hostile.
Result<tensor::Catalog> open_checkpoint(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace ckpt::formats
