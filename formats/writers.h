// The table of formats that can be written. Explicit, no static initialisers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/tensor/grid.h"
#include "lib/tensor/layout.h"

namespace ckpt::formats {

struct WriteOptions {
  tensor::GridChoice grid;                    ///< the pieces that tensors are stored in, where the format has pieces
  unsigned files = 0;                         ///< data files; 0: by size
  uint64_t file_size = 0;  ///< no data file is to be larger, but for one of a single tensor; 0: the format's own choice
  uint64_t max_memory = uint64_t{256} << 20;  ///< bytes, of the whole process
  bool one_file = false;                      ///< the destination is a file, not a folder: the layout has exactly one
  std::string mcore;  ///< the release of Megatron Core that shall read it; auto or empty: those that read the source
};

struct Writer {
  std::string_view name;                      ///< of --to
  std::string_view summary;
  std::span<const std::string_view> suffixes; ///< names of a destination that is a single file: ".safetensors"
  bool has_pieces = false;                    ///< WriteOptions::grid has a meaning
  bool has_files = false;                     ///< ... and files, file_size
  /// kUsage: keys that the format cannot name, objects that it has no place for, each one listed, with a hint how to
  /// leave them out. kUnsupported: something of the source cannot be carried over, a dtype that the format lacks.
  /// kNoRoom: memory. kCorrupt: shards missing, overlapping or outside their files.
  Result<std::unique_ptr<tensor::Layout>> (*plan)(const tensor::Selection& selection, const WriteOptions& options);
};

std::span<const Writer> writers();
const Writer* find_writer(std::string_view name);

/// For formats of tensors alone: kUsage where the selection has objects or a common state, each one named.
Result<void> refuse_what_is_no_tensor(const tensor::Selection& selection, std::string_view format);

/// What safetensors, GGUF or Zarr say of a whole checkpoint: a JSON object, empty where the format has no such thing.
std::string metadata_of(const tensor::Catalog& source);
/// A note for people where `writer` has no place for it; empty: nothing is lost.
std::string lost_metadata(const tensor::Catalog& source, std::string_view writer);

/// A range of a source file, front to back, into a generated file.
Result<void> copy_to(const tensor::Catalog& source, const tensor::FileRange& range,
                     const tensor::OutputFile::Sink& sink);

/// `error` with the first of `causes` and how many more there are.
Error with_causes(Error error, std::vector<std::string> causes);

}  // namespace ckpt::formats
