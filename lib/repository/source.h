// What is pushed: the files of an image with its parents, or of a checkpoint, as they lie on this host.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/repository/cutter.h"
#include "lib/repository/tree.h"

namespace ckpt::repository {

struct SourceFile {
  std::filesystem::path path;
  size_t entry = 0;    ///< in Source::entries
  bool pages = false;  ///< cut by pages, but for `fixed`
  std::vector<Fixed> fixed;
  /// What it was like when it was found: it must be the same when it was read.
  int64_t mtime_ns = 0, ctime_ns = 0;
  uint64_t inode = 0, device = 0;
};

struct Source {
  std::vector<Entry> entries;  ///< without the content of files
  std::vector<SourceFile> files;
  std::vector<SourceFile> folders;  ///< what they were like, but those of images
  std::string kind, format;  ///< of a process image, or a job's ("process", "job"); else kind "model"
  std::string created;       ///< of a process image
  std::string path;          ///< as Ref::path
  uint64_t bytes = 0, images = 0;
};

/// A process image and its parents, the image of a job with those of all of its parts (kNotFound: one is not here), or
/// any other file or folder. Links that lead out, sockets, devices and pipes are refused by name (kUnsupported), and
/// so is an image whose parents are not where it says (kNotFound, kCorrupt).
Result<Source> find_source(const std::filesystem::path& path, const Cancel& cancel);

/// The file opened, without following a link. kMismatch: it is not the one that was found.
Result<UniqueFd> open_source(const SourceFile& file);
/// kMismatch: it has changed since it was found.
Result<void> check_unchanged(const SourceFile& file, int fd);

}  // namespace ckpt::repository
