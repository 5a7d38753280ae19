// A folder of images as criu has it, around an image of ckpt's.
//
//   DIR/ckpt           ckpt's image: there complete and durable, or not at all
//   DIR/inventory.img  criu's list of what a checkpoint holds; podman takes a folder that has one for complete
//   WORK/stats-dump, WORK/stats-restore   criu's statistics, for podman and crit
//
// What else lies in DIR (logs, what runtimes note there) is left alone.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lib/base/result.h"
#include "lib/engine/dump.h"
#include "lib/engine/restore.h"

namespace ckpt::cli::criu {

/// Where a dump into `images_dir` puts ckpt's image.
std::filesystem::path image_in(const std::filesystem::path& images_dir);
/// The image to read: that of a dump into `images_dir`, or `images_dir` itself where ckpt wrote it (ckpt dump -f).
std::filesystem::path find_image(const std::filesystem::path& images_dir);

/// What criu counts. Times in microseconds.
struct DumpStatistics {
  uint64_t freezing_us = 0, frozen_us = 0, memdump_us = 0, memwrite_us = 0;
  uint64_t pages_scanned = 0, pages_skipped_parent = 0, pages_written = 0;
};
struct RestoreStatistics {
  uint64_t forking_us = 0, restore_us = 0, pages_restored = 0;
};
DumpStatistics count(const engine::DumpReport& report);
RestoreStatistics count(const engine::RestoreReport& report);

/// Files of criu's format. Each appears whole under its name.
Result<void> write_inventory(const std::filesystem::path& images_dir);
Result<void> write_statistics(const std::filesystem::path& work_dir, const DumpStatistics& statistics);
Result<void> write_statistics(const std::filesystem::path& work_dir, const RestoreStatistics& statistics);

}  // namespace ckpt::cli::criu
