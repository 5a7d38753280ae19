#include "cli/criu/images.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "cli/criu/images.pb.h"
#include "lib/base/replace_file.h"

namespace ckpt::cli::criu {

namespace {

namespace fs = std::filesystem;

// First words of criu's files: of its service files, of the inventory, and, second, of the statistics.
constexpr uint32_t kServiceMagic = 0x55105940, kInventoryMagic = 0x58313116, kStatisticsMagic = 0x57093306;
constexpr uint32_t kImageVersion = 2;  // CRTOOLS_IMAGES_V1_1

/// Words in the machine's order, then the message with its length in front.
template <class Message>
std::string file_of(std::initializer_list<uint32_t> magic, const Message& message) {
  std::string out;
  auto add = [&](uint32_t word) { out.append(reinterpret_cast<const char*>(&word), sizeof word); };
  for (uint32_t word : magic) add(word);
  const std::string body = message.SerializeAsString();
  add(static_cast<uint32_t>(body.size()));
  return out + body;
}

/// criu's counters of time have 32 bits.
uint32_t narrow(uint64_t us) {
  return static_cast<uint32_t>(std::min<uint64_t>(us, std::numeric_limits<uint32_t>::max()));
}

uint64_t sum(const std::vector<std::pair<std::string, uint64_t>>& phases, std::initializer_list<const char*> names) {
  uint64_t out = 0;
  for (const auto& [name, us] : phases) {
    for (const char* wanted : names) out += name == wanted ? us : 0;
  }
  return out;
}

}  // namespace

fs::path image_in(const fs::path& images_dir) { return images_dir / "ckpt"; }

fs::path find_image(const fs::path& images_dir) {
  std::error_code ec;
  const bool is_image = fs::exists(images_dir / "manifest.json", ec);
  return is_image && !fs::exists(image_in(images_dir), ec) ? images_dir : image_in(images_dir);
}

DumpStatistics count(const engine::DumpReport& report) {
  const store::CaptureStats& stats = report.manifest.stats;
  DumpStatistics out;
  out.freezing_us = sum(stats.phases_us, {"freeze"});
  out.frozen_us = stats.frozen_us;
  out.memdump_us = sum(stats.phases_us, {"pre-copy", "scan", "copy", "copy snapshot"});
  out.memwrite_us = sum(stats.phases_us, {"store", "write"});
  out.pages_scanned = stats.pages_scanned;
  out.pages_skipped_parent = stats.pages_unchanged;
  out.pages_written = stats.pages_copied;
  return out;
}

RestoreStatistics count(const engine::RestoreReport& report) {
  return {sum(report.phases_us, {"create"}), report.total_us, report.pages};
}

Result<void> write_inventory(const fs::path& images_dir) {
  criu_image::Inventory message;
  message.set_img_version(kImageVersion);
  message.set_fdinfo_per_id(true);
  message.set_ns_per_id(true);
  return io::replace_file(images_dir / "inventory.img", file_of({kInventoryMagic}, message));
}

Result<void> write_statistics(const fs::path& work_dir, const DumpStatistics& statistics) {
  criu_image::Stats message;
  criu_image::DumpStats& dump = *message.mutable_dump();
  dump.set_freezing_time(narrow(statistics.freezing_us));
  dump.set_frozen_time(narrow(statistics.frozen_us));
  dump.set_memdump_time(narrow(statistics.memdump_us));
  dump.set_memwrite_time(narrow(statistics.memwrite_us));
  dump.set_pages_scanned(statistics.pages_scanned);
  dump.set_pages_skipped_parent(statistics.pages_skipped_parent);
  dump.set_pages_written(statistics.pages_written);
  dump.set_pages_lazy(0);
  return io::replace_file(work_dir / "stats-dump", file_of({kServiceMagic, kStatisticsMagic}, message));
}

Result<void> write_statistics(const fs::path& work_dir, const RestoreStatistics& statistics) {
  criu_image::Stats message;
  criu_image::RestoreStats& restore = *message.mutable_restore();
  restore.set_pages_compared(0);
  restore.set_pages_skipped_cow(0);
  restore.set_forking_time(narrow(statistics.forking_us));
  restore.set_restore_time(narrow(statistics.restore_us));
  restore.set_pages_restored(statistics.pages_restored);
  return io::replace_file(work_dir / "stats-restore", file_of({kServiceMagic, kStatisticsMagic}, message));
}

}  // namespace ckpt::cli::criu
