// The image of t1 while kernels go on (device_capture.h).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lib/base/trace.h"
#include "lib/capture/device_capture.h"

namespace ckpt::capture {

using device::Address;

namespace {

/// Copy-on-write in several targets, ended whatever happens.
class CowScope {
 public:
  Result<void> begin(device::Target& target, uint64_t budget) {
    CKPT_TRY(target.begin_cow(budget));
    on_.push_back(&target);
    return {};
  }
  Result<void> end() {
    Result<void> first;
    for (device::Target* target : std::exchange(on_, {})) {
      Result<void> ended = target->end_cow();
      if (first && !ended) first = std::move(ended);
    }
    return first;
  }
  ~CowScope() { (void)end(); }

 private:
  std::vector<device::Target*> on_;
};

}  // namespace

/// Takes all that differs from the image, while kernels run; what came out other than it was at t1.
Result<DeviceCapture::Chosen> DeviceCapture::copy_first(Snapshot& out) {
  Chosen chosen;
  for (DeviceRegion* region : map_.regions()) {
    for (size_t i = 0; i < region->chunks(); ++i) {
      if (region->is_current(i)) ++out.pass.kept;
      else chosen.push_back({region, i});
      ++out.pass.chunks;
    }
  }
  CKPT_TRY(note_zeros(chosen, Word::kAhead, out.pass));
  CKPT_TRY(copy_all(chosen, Word::kAhead, out.pass));
  ++rounds_;
  std::erase_if(chosen, [](const ChunkRef& ref) { return ref.region->is_current(ref.chunk); });
  return chosen;
}

/// Takes chunks from what was set aside; those that are not there as they were at t1.
Result<DeviceCapture::Chosen> DeviceCapture::take_saved(const Chosen& chosen, uint64_t& from_saved) {
  for (size_t source = 0; source < map_.sources().size(); ++source) {
    Chosen here = chosen;
    std::erase_if(here, [&](const ChunkRef& ref) { return ref.region->source != source; });
    if (here.empty()) continue;
    device::Target& target = *map_.sources()[source].target;
    CKPT_TRY_ASSIGN(device::SavedTable table, target.saved(options_.staging.timeout_us));
    for (device::Device* device : map_.devices()) {
      std::map<uint64_t, std::unique_ptr<device::Buffer>> imports;
      Chosen found;
      std::vector<Address> from;
      for (const ChunkRef& ref : here) {
        const device::Range range{ref.region->address(ref.chunk), kDeviceChunk};
        auto save = std::find_if(table.saved.begin(), table.saved.end(), [&](const auto& s) { return s.original.contains(range); });
        if (save == table.saved.end() || ref.region->uuid != device->properties().uuid) continue;
        auto& import = imports[save->buffer];
        if (!import) {
          CKPT_TRY_ASSIGN(UniqueFd fd, target.export_saved(save->buffer));
          CKPT_TRY_ASSIGN(import, device->import(fd.get(), save->buffer_size));
        }
        found.push_back(ref);
        from.push_back(import->range().start + save->offset + (range.start - save->original.start));
      }
      if (found.empty()) continue;
      Result<void> copied = copy(*device, found, from, Word::kAhead);
      for (auto& [buffer, import] : imports) rings_.at(device->properties().uuid)->retire(std::move(import));
      CKPT_TRY(std::move(copied));
    }
  }
  ++rounds_;
  Chosen lost = chosen;
  std::erase_if(lost, [](const ChunkRef& ref) { return ref.region->is_current(ref.chunk); });
  from_saved = chosen.size() - lost.size();
  return lost;
}

Result<DeviceCapture::Snapshot> DeviceCapture::snapshot(const AtStop& at_first, const AtStop& at_second) {
  trace::Span span("device snapshot");
  Snapshot out;
  CowScope cow;
  {
    CKPT_TRY_ASSIGN(DeviceStop stop, DeviceStop::begin(targets(), options_.stop_timeout_us));
    CKPT_TRY(look());
    for (device::Target* target : targets()) CKPT_TRY(cow.begin(*target, options_.cow_budget));
    if (at_first) CKPT_TRY(at_first());
    CKPT_TRY_ASSIGN(out.stop_us, stop.end());
  }
  CKPT_TRY_ASSIGN(Chosen missing, copy_first(out));
  CKPT_TRY_ASSIGN(Chosen lost, take_saved(missing, out.from_saved));
  CKPT_TRY(cow.end());
  out.lost = lost.size();
  if (lost.empty()) {
    for (DeviceRegion* region : map_.regions()) {
      for (size_t i = 0; i < region->chunks(); ++i) CKPT_TRY(sink_.keep(map_.space(*region), region->address(i)));
    }
    return out;
  }
  if (!at_second) {
    return Error(Code::kBusy, fmt::format("device memory at {:#x}", lost.front().region->address(lost.front().chunk).value),
                 "was written before it could be copied, in a way that could not be foreseen or for want of device memory")
        .with_hint("a larger budget may help, or an image of a stop");
  }
  out.moment = Moment::kSecond;
  CKPT_TRY_ASSIGN(DeviceStop stop, DeviceStop::begin(targets(), options_.stop_timeout_us));
  CKPT_TRY_ASSIGN(const DevicePass second, delta_at_stop());
  out.pass.copied += second.copied, out.pass.zero += second.zero;
  CKPT_TRY(at_second());
  CKPT_TRY_ASSIGN(out.second_stop_us, stop.end());
  CKPT_TRY(say_kept());
  return out;
}

}  // namespace ckpt::capture
