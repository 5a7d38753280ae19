// Carries out a Layout.
#pragma once

#include <filesystem>
#include <span>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/tensor/layout.h"

namespace ckpt::tensor {

struct WriteControl {
  unsigned workers = 0;        ///< 0: one per core
  bool durable = true;         ///< every file is on disk before it gets its name
  uint64_t max_memory = uint64_t{256} << 20;  ///< bytes, of the whole process
  ProgressSink& progress;      ///< advanced by the bytes of pieces
  const Cancel& cancel;
  bool allow_damage = false;   ///< a CRC that differs from the source's does not end the work
};

/// Writes the data files `which` (indices into layout.files) below `folder`, which exists. Each appears under its name
/// complete; until then it is named after it with ".part" behind. The bytes do not depend on the number of workers.
/// What is odd about the source, or with `allow_damage` damaged, is returned. kCorrupt: the source is damaged (a CRC
/// of it differs: before a file with such bytes gets its name) or changed meanwhile. kInterrupted: cancelled. Files
/// that were begun stay behind: the caller's folder is a staging folder.
Result<std::vector<Finding>> write_data_files(const Layout& layout, const Selection& selection,
                                              const std::filesystem::path& folder, std::span<const size_t> which,
                                              const WriteControl& control);

/// One file that is generated.
Result<void> write_generated_file(const OutputFile& file, const std::filesystem::path& folder,
                                  const WriteControl& control);

}  // namespace ckpt::tensor
