// A chain of images made into one that needs no parent.
#pragma once

#include <filesystem>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/store/image.h"

namespace ckpt::store {

struct SquashOptions {
  bool force = false;     ///< replace a destination that is not empty
  bool compress = true;   ///< frames are copied as they lie, raw blocks tried; else all is stored raw
  bool sha256_pages = false;     ///< as ImageWriter::Options has it
  Trust trust = Trust::kOwn;     ///< of the source: who squashes another's image makes it his own
  unsigned workers = 0;   ///< 0: one a core
};

struct SquashReport {
  Manifest manifest;              ///< of the new image
  ImageWriter::Totals totals;
  size_t images = 0;              ///< of the chain
  uint64_t bytes_before = 0;      ///< of the chain on disk
};

/// Writes what `from` says through its chain of parents to `to`: the same memory, tree, kind and statistics of the
/// capture, another id, no parent. Every byte is compared with its hash on the way. Memory: the page maps and 128 KiB a
/// worker. kUsage where `to` is an image of the chain itself. Any failure leaves `to` as it was.
Result<SquashReport> squash(const std::filesystem::path& from, const std::filesystem::path& to,
                            const SquashOptions& options, ProgressSink& progress, const Cancel& cancel);

}  // namespace ckpt::store
