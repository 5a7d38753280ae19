// The parts that the agents of several nodes have written, as one checkpoint of the format's own files.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/torch_dist/metadata_writer.h"
#include "lib/base/result.h"
#include "lib/flash/catalog.h"

namespace ckpt::flash {

/// Whether several nodes can write it together: dcp and torch_dist, whose data lies in as many files as one likes.
bool is_written_together(const std::string& format);
/// kUnsupported, by its name.
Error not_written_together(const std::string& format);

class Merge {
 public:
  /// Into the folder `staged`, which is there.
  Merge(const std::string& format, const Ownership& owners, std::filesystem::path staged)
      : format_(format), owners_(owners), staged_(std::move(staged)) {}

  /// Moves a part's data files, under names of `node`'s own, and notes where its shards and objects lie in them.
  /// kMismatch: it was written in another format.
  Result<void> take(const std::filesystem::path& part, uint32_t node);
  /// .metadata, and what else the format has for all. Nothing is synced. kCorrupt: no part has had a shard or object.
  Result<void> write_metadata(std::vector<std::string>& notes) const;
  /// The file that makes the whole complete.
  const char* last_file() const;

 private:
  bool is_megatron() const { return format_ == "torch_dist"; }
  Result<void> write_file(const char* name, const std::string& text) const;
  Result<void> write_index() const;
  Result<void> write_places(torch_dist::MetadataWriter& out) const;

  const std::string& format_;
  const Ownership& owners_;
  std::filesystem::path staged_;
  std::map<std::string, torch_dist::StorageInfo> shards_, objects_;
};

}  // namespace ckpt::flash
