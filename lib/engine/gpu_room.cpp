#include "lib/engine/gpu_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lib/base/text.h"
#include "lib/proc/memory_room.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

std::vector<HostRoom> host_room_for(const std::vector<GpuLoad>& loads) {
  std::vector<HostRoom> out;
  for (const GpuLoad& load : loads) {
    for (proc::MemoryRoom& room : proc::read_memory_room(load.pid)) {
      auto same =
          std::find_if(out.begin(), out.end(), [&](const HostRoom& other) { return other.limit == room.limit; });
      if (same == out.end()) same = out.insert(out.end(), {std::move(room.limit), 0, room.bytes});
      same->needed += load.bytes;
    }
  }
  return out;
}

std::string no_room_for(const HostRoom& room) {
  return fmt::format("{} of GPU memory would go to host memory, and {} has room for {}", human_bytes(room.needed),
                     room.limit, human_bytes(room.bytes));
}

Result<void> check_host_room(const std::vector<GpuLoad>& loads) {
  for (const HostRoom& room : host_room_for(loads)) {
    if (room.enough()) continue;
    return fail(Code::kNoRoom, proc::describe_pid(loads.front().pid), no_room_for(room));
  }
  return {};
}

namespace {

/// Which GPU of this machine each one of the checkpoint becomes.
class GpuPlaces {
 public:
  GpuPlaces(const std::vector<device::Gpu>& here, const store::GpuState& state) : here_(here), state_(state) {}

  Result<void> put(const std::string& from, const std::string& to) {
    if (find(to) == nullptr) return not_here(to, from);
    for (const auto& [other, place] : places_) {
      if (place == to && other != from)
        return fail(Code::kUsage, "--gpu-map", fmt::format("{} and {} cannot both go to {}", other, from, to));
    }
    places_[from] = to;
    return {};
  }
  bool has(const std::string& from) const { return places_.count(from) != 0; }
  /// Where it was, if nobody else goes there.
  void keep(const std::string& from) {
    if (!has(from) && find(from) != nullptr && !is_taken(from)) places_[from] = from;
  }
  /// Where nobody goes; one of the same kind first. False: there is no such place.
  bool put_anywhere(const std::string& from) {
    const std::string kind = kind_of(from);
    for (const bool any_kind : {false, true}) {
      for (const device::Gpu& gpu : here_) {
        if (has(from) || is_taken(gpu.uuid) || (!any_kind && gpu.name != kind)) continue;
        places_[from] = gpu.uuid;
      }
    }
    return has(from);
  }
  const std::map<std::string, std::string>& all() const { return places_; }
  const device::Gpu* find(const std::string& uuid) const {
    auto gpu = std::find_if(here_.begin(), here_.end(), [&](const device::Gpu& g) { return g.uuid == uuid; });
    return gpu == here_.end() ? nullptr : &*gpu;
  }
  static Error not_here(const std::string& uuid, const std::string& from) {
    return Error(Code::kNotFound, uuid, "is not a GPU of this machine")
        .with_hint("--gpu-map " + from + "=UUID puts its state on another one of the same kind");
  }

 private:
  bool is_taken(const std::string& uuid) const {
    return std::any_of(places_.begin(), places_.end(), [&](const auto& place) { return place.second == uuid; });
  }
  std::string kind_of(const std::string& uuid) const {
    for (const store::GpuUse& use : state_.used) {
      if (use.uuid == uuid) return use.name;
    }
    const device::Gpu* gpu = find(uuid);
    return gpu == nullptr ? "" : gpu->name;
  }

  const std::vector<device::Gpu>& here_;
  const store::GpuState& state_;
  std::map<std::string, std::string> places_;
};

/// All that the checkpoint knew of, each once.
std::vector<std::string> known_gpus(const store::GpuState& state) {
  std::vector<std::string> out = state.present;
  for (const store::GpuUse& use : state.used) {
    if (std::find(out.begin(), out.end(), use.uuid) == out.end()) out.push_back(use.uuid);
  }
  return out;
}

Result<void> place_all(const store::GpuState& state, const device::GpuMap& map, GpuPlaces& places) {
  const std::vector<std::string> known = known_gpus(state);
  for (const auto& [from, to] : map) {
    // Older images tell only of those that were used.
    if (!state.present.empty() && std::find(known.begin(), known.end(), from) == known.end())
      return fail(Code::kUsage, "--gpu-map " + from, "is not a GPU that was there at the checkpoint");
    CKPT_TRY(places.put(from, to));
  }
  for (const std::string& uuid : known) places.keep(uuid);
  for (const store::GpuUse& use : state.used) {
    if (places.has(use.uuid)) continue;
    if (map.empty() || !places.put_anywhere(use.uuid)) return places.not_here(use.uuid, use.uuid);
  }
  // Unused ones may have no place left on a machine that has fewer.
  for (const std::string& uuid : known) (void)places.put_anywhere(uuid);
  return {};
}

}  // namespace

Result<device::GpuMap> check_gpus(device::ProcessControl& control, const store::GpuState& state,
                                  const device::GpuMap& map) {
  CKPT_TRY_ASSIGN(const std::vector<device::Gpu> here, control.gpus());
  GpuPlaces places(here, state);
  CKPT_TRY(place_all(state, map, places));
  for (const store::GpuUse& use : state.used) {
    const device::Gpu& gpu = *places.find(places.all().at(use.uuid));
    if (gpu.free_bytes < use.bytes) {
      return fail(Code::kNoRoom, gpu.uuid,
                  fmt::format("has {} free, and {} are needed", human_bytes(gpu.free_bytes), human_bytes(use.bytes)));
    }
  }
  if (map.empty()) return device::GpuMap();
  return device::GpuMap(places.all().begin(), places.all().end());
}

}  // namespace ckpt::engine
