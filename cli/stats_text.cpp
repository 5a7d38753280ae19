#include "cli/stats_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/text.h"
#include "lib/store/image.h"

namespace ckpt::cli {

std::string json_key(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ' ' || c == '-'; }, '_');
  return name;
}

std::string frozen_text(const store::CaptureStats& stats) {
  return human_us(stats.frozen_us) +
         (stats.stops_us == 0 ? "" : ", and " + human_us(stats.stops_us) + " in short stops beside it");
}

std::string rounds_text(const store::CaptureStats& stats) {
  std::string out;
  for (const store::CaptureIteration& one : stats.iterations)
    out += fmt::format("{}{} in {}", out.empty() ? "" : ", ", human_bytes(one.pages * store::kPageSize),
                       human_us(one.us));
  return out.empty() ? "nothing" : out;
}

std::string gpu_text(const store::CaptureStats& stats) {
  std::string out = stats.gpu_held_us == 0 ? "ended" : "work held for " + human_us(stats.gpu_held_us);
  if (stats.gpu_bytes == 0) return out;
  return out + fmt::format("; {} of memory: {} pre-copied, {} at the stop, {} deferred", human_bytes(stats.gpu_bytes),
                           human_bytes(stats.gpu_bytes_precopied), human_bytes(stats.gpu_bytes_last),
                           human_bytes(stats.gpu_bytes_deferred));
}

std::string load_text(const store::CaptureStats& stats) {
  const uint64_t ready = stats.target_ran_us + stats.target_waited_us;
  const double waited =
      ready == 0 ? 0 : 100.0 * static_cast<double>(stats.target_waited_us) / static_cast<double>(ready);
  return fmt::format("{} page faults; {} on a processor, {} waiting for one ({:.0f} %)", stats.target_faults,
                     human_us(stats.target_ran_us), human_us(stats.target_waited_us), waited);
}

std::string phases_text(const store::CaptureStats& stats, bool all) {
  constexpr size_t kLongest = 3;
  auto phases = stats.phases_us;
  const size_t shown = all ? phases.size() : std::min(kLongest, phases.size());
  if (!all)
    std::stable_sort(phases.begin(), phases.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out;
  for (size_t i = 0; i < shown; ++i)
    out += fmt::format("{}{} {}", i == 0 ? "" : ", ", phases[i].first, human_us(phases[i].second));
  return shown == phases.size() ? out : out + fmt::format(", and {} shorter ones", phases.size() - shown);
}

std::string stats_json(const store::CaptureStats& stats) {
  using Json = nlohmann::ordered_json;
  Json phases = Json::object(), saved = Json::object();
  for (const auto& [name, us] : stats.phases_us)
    phases[json_key(name)] = phases.value(json_key(name), uint64_t{0}) + us;
  for (const SavedBytes& why : kSavedBytes) saved[why.name] = stats.saved.*why.bytes;
  Json iterations = Json::array();
  for (const store::CaptureIteration& one : stats.iterations)
    iterations.push_back({{"pages", one.pages}, {"us", one.us}});
  const Json doc = {{"frozen_us", stats.frozen_us},
                    {"stops_us", stats.stops_us},
                    {"rounds", iterations},
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
  return doc.dump();
}

}  // namespace ckpt::cli
