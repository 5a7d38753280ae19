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

struct Reason {
  const char* name;  ///< as in the manifest
  const char* text;
  uint64_t Savings::*bytes;
};
constexpr Reason kReasons[] = {
    {"zero", "zero pages", &Savings::zero},
    {"same_space", "repeats within a process", &Savings::same_space},
    {"other_space", "repeats of another process", &Savings::other_space},
    {"parent_unwritten", "not written since the parent", &Savings::parent_unwritten},
    {"parent_equal", "read, equal to the parent", &Savings::parent_equal},
    {"chain_elsewhere", "elsewhere in the chain", &Savings::chain_elsewhere},
    {"compression", "compression", &Savings::compression},
};

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
  for (const Reason& reason : kReasons) sum += manifest.stats.saved.*reason.bytes;
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
  for (const Reason& reason : kReasons) row(reason.text, m.stats.saved.*reason.bytes);
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

Json stats_object(const CaptureStats& stats) {
  Json phases = Json::object(), saved = Json::object();
  for (const auto& [name, us] : stats.phases_us)
    phases[json_key(name)] = phases.value(json_key(name), uint64_t{0}) + us;
  for (const Reason& reason : kReasons) saved[reason.name] = stats.saved.*reason.bytes;
  Json rounds = Json::array();
  for (const CaptureRound& round : stats.rounds) rounds.push_back({{"pages", round.pages}, {"us", round.us}});
  return {{"frozen_us", stats.frozen_us},
          {"stops_us", stats.stops_us},
          {"rounds", rounds},
          {"target_faults", stats.target_faults},
          {"target_ran_us", stats.target_ran_us},
          {"target_waited_us", stats.target_waited_us},
          {"pages_scanned", stats.pages_scanned},
          {"pages_copied", stats.pages_copied},
          {"pages_zero", stats.pages_zero},
          {"pages_unchanged", stats.pages_unchanged},
          {"bytes_memory", stats.bytes_memory},
          {"gpu_held_us", stats.gpu_held_us},
          {"gpu_bytes", stats.gpu_bytes},
          {"gpu_bytes_precopied", stats.gpu_bytes_precopied},
          {"gpu_bytes_last", stats.gpu_bytes_last},
          {"gpu_bytes_deferred", stats.gpu_bytes_deferred},
          {"bytes_written", stats.bytes_written},
          {"saved", saved},
          {"phases_us", phases}};
}

}  // namespace

std::string stats_json(const CaptureStats& stats) { return stats_object(stats).dump(); }

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
              {"stats", stats_object(m.stats)}};
  context.out.data(lay_out_json(doc.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return {};
}

}  // namespace ckpt::cli
