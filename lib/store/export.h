// An image with its parents as one stream, and back; and as an image of containers. man/ckpt-image.5, Archives.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "lib/base/bytes.h"
#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/store/image.h"

namespace ckpt::store {

struct ExportReport {
  Manifest manifest;    ///< of the newest image
  size_t images = 0;
  uint64_t bytes = 0;   ///< of the archive
  std::string sha256;   ///< of the archive
};

/// Gives the archive to `sink` front to back: the same bytes for the same images, wherever they lie. Manifests and
/// files with a digest are compared with it on the way: kCorrupt, and the archive has no end then. `trust`: of all
/// images of the chain, for who takes in the archive makes what they say his own.
Result<ExportReport> export_tar(const std::filesystem::path& dir, Trust trust,
                                const std::function<Result<void>(ByteSpan)>& sink, ProgressSink& progress,
                                const Cancel& cancel);

/// An OCI image layout with one image, of one layer, which is that archive. The folder appears complete, or not at all.
Result<ExportReport> export_oci(const std::filesystem::path& dir, Trust trust, const std::filesystem::path& to,
                                bool force, ProgressSink& progress, const Cancel& cancel);

struct ImportOptions {
  std::filesystem::path dir;  ///< becomes the image; of a chain the folder that all its images lie in
  bool force = false;         ///< takes the place of what is there
};
struct ImportReport {
  Manifest manifest;
  std::filesystem::path path;  ///< of the newest image
  size_t images = 0;
  uint64_t bytes = 0;
};

/// What `source` gives, front to back (at least one byte, 0: no more), is a stranger's: an archive has images and
/// nothing else, each file is one that its image's manifest names and as large, and every byte is compared with its
/// digest before the images get their names. kCorrupt, kUnsupported: it is something else; nothing is left of it.
Result<ImportReport> import_tar(const std::function<Result<size_t>(MutableByteSpan)>& source,
                                const std::string& subject, const ImportOptions& options, ProgressSink& progress,
                                const Cancel& cancel);

}  // namespace ckpt::store
