// inspect --stats: how an image came about, and what took no room in it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/inspect_image.h"
#include "cli/stats_text.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

using Json = nlohmann::ordered_json;
using namespace store;

uint64_t pages_files_bytes(const Manifest& manifest) {
  uint64_t sum = 0;
  for (const StoredFile& file : manifest.files) {
    if (file.name.rfind("pages", 0) == 0) sum += file.size;
  }
  return sum;
}

/// All memory that came to the image.
uint64_t memory_bytes(const Manifest& manifest) {
  uint64_t sum = pages_files_bytes(manifest);
  for (const SavedBytes& saved : kSavedBytes) sum += manifest.stats.saved.*saved.bytes;
  return sum;
}

void print(Console& out, const std::filesystem::path& dir, const Manifest& m) {
  const uint64_t all = memory_bytes(m);
  std::vector<std::vector<std::string>> rows;
  auto row = [&](const char* what, uint64_t bytes) {
    rows.push_back(
        {what, human_bytes(bytes),
         all == 0 ? "" : fmt::format("{:.1f}%", 100.0 * static_cast<double>(bytes) / static_cast<double>(all))});
  };
  row("memory", all);
  for (const SavedBytes& saved : kSavedBytes) row(saved.text, m.stats.saved.*saved.bytes);
  row("stored", pages_files_bytes(m));
  out.table({}, {{"image", dir.string()},
                 {"kind", m.kind + ", " + m.created},
                 {"frozen", frozen_text(m.stats)},
                 {"pre-copied", rounds_text(m.stats)},
                 {"meanwhile", load_text(m.stats)},
                 {"pages", fmt::format("{} scanned, {} copied, {} zero, {} unchanged", m.stats.pages_scanned,
                                       m.stats.pages_copied, m.stats.pages_zero, m.stats.pages_unchanged)},
                 {"read", human_bytes(m.stats.bytes_memory)},
                 {"written", human_bytes(m.stats.bytes_written)}});
  out.data("\n");
  out.table({"MEMORY", "SIZE", "SHARE"}, rows, {1, 2});
  rows.clear();
  for (const auto& [name, us] : m.stats.phases_us) rows.push_back({name, human_us(us)});
  out.data("\n");
  out.table({"PHASE", "TIME"}, rows, {1});
}

}  // namespace

Result<void> inspect_image_stats(Context& context, const std::filesystem::path& dir) {
  CKPT_TRY_ASSIGN(Manifest m, read_manifest(dir));
  if (!context.out.json()) {
    print(context.out, dir, m);
    return {};
  }
  Json doc = {{"schema", "ckpt.inspect/1"},
              {"kind", "process"},
              {"path", dir.string()},
              {"id", m.id},
              {"image_kind", m.kind},
              {"created", m.created},
              {"parent_path", m.parent_path},
              {"memory_bytes", memory_bytes(m)},
              {"stored_bytes", pages_files_bytes(m)},
              {"stats", Json::parse(stats_json(m.stats))}};
  context.out.data(lay_out_json(doc.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return {};
}

}  // namespace ckpt::cli
