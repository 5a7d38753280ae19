#include "lib/state/aio/capture.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/trace.h"
#include "lib/proc/aio.h"
#include "lib/proc/remote_memory.h"
#include "lib/state/aio/ring.h"

namespace ckpt::capture {

using proc::AioContextInfo;
using state::AioRing;

bool is_aio_ring(const proc::Vma& vma) { return vma.name.rfind("/[aio]", 0) == 0; }

namespace {

std::string subject_of(const store::MemoryMap& map) {
  return fmt::format("mapping {:x}-{:x} [aio]", map.start, map.end);
}

std::string in_flight(const AioContextInfo& info) {
  std::string out =
      fmt::format("an AIO context with {} request{} in flight", info.in_flight, info.in_flight == 1 ? "" : "s");
  if (info.polls != 0) out += fmt::format(" ({} of them polls)", info.polls);
  return out;
}

/// The number that the kernel gave it in its table is no state of the process.
Result<std::vector<std::byte>> read_ring(int pid, const store::MemoryMap& map, AioRing& ring) {
  std::vector<std::byte> out(map.end - map.start);
  CKPT_TRY(proc::read_memory(pid, proc::RemoteAddress(map.start), out));
  std::memset(out.data(), 0, sizeof ring.id);
  std::memcpy(&ring, out.data(), sizeof ring);
  return out;
}

/// Whether the kernel's memory and the ring's own tell the same: the process can write to that.
std::string contradiction(const AioContextInfo& info, const store::MemoryMap& map, const AioRing& ring) {
  if (info.size != map.end - map.start || map.file_offset != 0)
    return "an AIO context of whose ring a part is unmapped or protected, which is not supported";
  if (!ring.is_sound() || ring.events != info.events || info.events != state::aio_events_in(info.size))
    return "an AIO context whose ring the program has written to, which is not supported";
  return "";
}

Result<void> take_context(Walk& walk, size_t process, const store::MemoryMap& map, const AioContextInfo& info) {
  AioRing ring;
  CKPT_TRY_ASSIGN(std::vector<std::byte> content, read_ring(walk.members[process].entry.pid, map, ring));
  if (std::string why = contradiction(info, map, ring); !why.empty())
    return walk.out.block(process, subject_of(map), std::move(why)), Result<void>();
  if (walk.options.frozen ? info.in_flight != 0 : info.polls != 0) {
    walk.out.block(process, subject_of(map), in_flight(info));
    walk.out.blockers.back().passes = true;
  }
  store::AioContext out{static_cast<int>(process), map.start, info.events, info.requests, 0, content.size()};
  walk.out.image.aio_contexts.push_back(out);
  walk.out.aio_contents.push_back(std::move(content));
  return {};
}

/// Pre-copy did not wait for what was in flight in it.
bool is_new(const Walk& walk, int pid, uint64_t start) {
  const Inventory* earlier = walk.options.earlier;
  if (earlier == nullptr) return false;
  const int process = earlier->find(pid);
  const auto& known = earlier->image.aio_contexts;
  return std::none_of(known.begin(), known.end(),
                      [&](const auto& c) { return c.process == process && c.start == start; });
}

Result<void> take_contexts(Walk& walk, size_t process) {
  std::vector<store::MemoryMap> rings;
  for (const store::MemoryMap& map : walk.out.image.processes[process].maps) {
    if (map.kind == store::MappingKind::kAio) rings.push_back(map);
  }
  if (rings.empty()) return {};
  const Member& member = walk.members[process];
  auto found = proc::read_aio_contexts(member.entry.pid, member.pidfd.get());
  if (!found && found.error().code == Code::kNotFound) return std::move(found).error();
  for (const store::MemoryMap& map : rings) {
    if (!found) {
      walk.out.block(process, subject_of(map),
                     "an AIO context, of which it cannot be told whether requests are in flight: " +
                         found.error().text());
      walk.out.blockers.back().passes = found.error().code == Code::kBusy;
      continue;
    }
    auto info = std::find_if(found->begin(), found->end(), [&](const auto& c) { return c.address == map.start; });
    if (info != found->end()) CKPT_TRY(take_context(walk, process, map, *info));
    else walk.out.block(process, subject_of(map), "the ring of an AIO context that is another process's, or has ended");
    if (is_new(walk, member.entry.pid, map.start)) walk.out.statuses[process][0].has_pinned_pages = true;
  }
  return {};
}

}  // namespace

Result<void> inventory_aio(Walk& walk) {
  for (size_t i = 0; i < walk.members.size(); ++i) {
    if (!walk.is_zombie(i)) CKPT_TRY(take_contexts(walk, i));
  }
  return {};
}

Result<bool> drain_aio(int pid, int pidfd) {
  constexpr uint64_t kPatienceUs = 20'000, kLimitUs = 200'000;
  constexpr unsigned kPauseUs = 100;
  trace::Span span("drain AIO");
  const uint64_t begin = monotonic_us();
  uint64_t progress = begin, left_before = ~uint64_t{0};
  for (;;) {
    CKPT_TRY_ASSIGN(const std::vector<AioContextInfo> found, proc::read_aio_contexts(pid, pidfd));
    uint64_t left = 0;
    for (const AioContextInfo& info : found) left += info.in_flight - info.polls;
    if (left == 0) return true;
    const uint64_t now = monotonic_us();
    if (left < left_before) progress = now, left_before = left;
    if (now - progress > kPatienceUs || now - begin > kLimitUs) return false;
    ::usleep(kPauseUs);
  }
}

}  // namespace ckpt::capture
