// Carries out a Layout.
#pragma once

#include <span>

#include "lib/base/cancel.h"
#include "lib/base/output.h"
#include "lib/base/progress.h"
#include "lib/tensor/layout.h"

namespace ckpt::tensor {

struct WriteControl {
  unsigned workers = 0;        ///< 0: one per core
  bool durable = true;         ///< what is written is to be on disk soon: the kernel starts on it early
  uint64_t max_memory = uint64_t{256} << 20;  ///< bytes, of the whole process
  ProgressSink& progress;      ///< advanced by the bytes of pieces
  const Cancel& cancel;
  bool allow_damage = false;   ///< a CRC that differs from the source's does not end the work
};

/// Writes the data files `which` (indices into layout.files). The bytes do not depend on the number of workers. What is
/// odd about the source, or with `allow_damage` damaged, is returned. kCorrupt: the source is damaged (a CRC of it
/// differs: before a file with such bytes is finished) or changed meanwhile. kInterrupted: cancelled. Files that were
/// begun stay behind: `out` is staged.
Result<std::vector<Finding>> write_data_files(const Layout& layout, const Selection& selection, io::OutputFolder& out,
                                              std::span<const size_t> which, const WriteControl& control);

/// One file that is generated.
Result<void> write_generated_file(const OutputFile& file, io::OutputFolder& out, const WriteControl& control);

}  // namespace ckpt::tensor
