#include "lib/memory/precopy.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/trace.h"
#include "lib/proc/procfs.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

namespace {

using store::MappingKind;
using store::MemoryMap;

/// The private mappings of a process that runs. The final inventory reports what of them cannot be carried.
Result<std::vector<MemoryMap>> read_private_maps(int pid, size_t expected) {
  CKPT_TRY_ASSIGN(std::vector<proc::Vma> vmas, proc::read_maps(pid, false, expected));
  std::vector<MemoryMap> out;
  out.reserve(vmas.size());
  for (const proc::Vma& vma : vmas) {
    const bool kernels = vma.name.rfind("[v", 0) == 0;  // [vdso], [vvar], [vvar_vclock], [vsyscall]
    MemoryMap& map = out.emplace_back();
    map.start = vma.start, map.end = vma.end, map.prot = vma.prot;
    map.kind = vma.shared || kernels ? MappingKind::kVdso
               : vma.inode == 0      ? MappingKind::kAnonymous
                                     : MappingKind::kPrivateFile;
  }
  return out;
}

/// What scans need to know.
std::vector<MemoryMap> without_names(const std::vector<MemoryMap>& maps) {
  std::vector<MemoryMap> out(maps.size());
  for (size_t i = 0; i < maps.size(); ++i) {
    out[i].start = maps[i].start, out[i].end = maps[i].end;
    out[i].prot = maps[i].prot, out[i].kind = maps[i].kind;
  }
  return out;
}

bool has_pinned_pages(int pid) {
  auto status = proc::read_status(pid, pid);
  return status && status->has_pinned_pages;
}

}  // namespace

void track_mappings(int userfault, const std::vector<MemoryMap>& maps) {
  // Neighbours in one call where the kernel takes them together: a process may have tens of thousands.
  for (size_t i = 0; i < maps.size();) {
    size_t end = i + 1;
    if (is_private(maps[i])) {
      while (end < maps.size() && maps[end].kind == maps[i].kind) ++end;
      if (!proc::track_range(userfault, maps[i].start, maps[end - 1].end)) {
        for (size_t k = i; k < end; ++k) (void)proc::track_range(userfault, maps[k].start, maps[k].end);
      }
    }
    i = end;
  }
}

Result<void> Precopy::add(int pid, int space, int userfault, bool tracked, const Seen& seen) {
  CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(pid));
  if (!pagemap.can_scan()) return fail(Code::kUnsupported, "PAGEMAP_SCAN", "this kernel does not have it (6.7 does)");
  std::vector<MemoryMap> maps = without_names(seen.maps);
  processes_.push_back({false, pid, space, userfault, tracked, std::move(pagemap), std::move(maps), seen.at_us, {}});
  return {};
}

void Precopy::drop_left_out() {
  std::erase_if(processes_, [](const Process& process) { return process.left_out; });
}

Result<Precopy::Dirty> Precopy::dirty() {
  trace::Span span("scan");
  std::vector<Dirty> found(processes_.size());
  CKPT_TRY(each_process([&](size_t i) { return scan_dirty(processes_[i], found[i]); }));
  drop_left_out();
  Dirty out;
  for (const Dirty& one : found) out.bytes += one.bytes, out.scan_us += one.scan_us;
  return out;
}

Result<void> Precopy::scan_dirty(Process& process, Dirty& out) {
  const uint64_t begin = monotonic_us();
  const ScanFor what = process.protected_once ? ScanFor::kChanges : ScanFor::kPopulated;
  auto found = scan_private(process.pagemap, process.maps, what);
  process.left_out = !found && proc::has_ended(process.pid);
  if (process.left_out) return {};
  if (!found) return std::move(found).error();
  out.bytes = plan_data(*found, what, process.maps).pages_data * store::kPageSize;
  out.scan_us = monotonic_us() - begin;
  return {};
}

template <class Scan>
Result<void> Precopy::each_process(Scan scan) {
  constexpr size_t kWorthThreads = 4;
  std::optional<WorkerPool> pool;
  if (processes_.size() >= kWorthThreads) make_helpers(options_.workers, pool);
  return side_by_side(pool ? &*pool : nullptr, processes_.size(), scan);
}

/// What an iteration copies of a process, protected again; its new mappings are tracked from here on.
Result<void> Precopy::scan_next(Process& process, std::vector<BlockPlan>& blocks) {
  auto scanned = [&]() -> Result<std::vector<proc::PageRegion>> {
    // A mapping that has come since is not tracked: it reads as written, and the next iteration or the stop copies it.
    constexpr uint64_t kMomentUs = 200'000;
    if (monotonic_us() - std::exchange(process.maps_at_us, 0) > kMomentUs) {
      CKPT_TRY_ASSIGN(process.maps, read_private_maps(process.pid, process.maps.size()));
    }
    track_mappings(process.userfault, process.maps);
    return scan_private(process.pagemap, process.maps,
                        process.protected_once ? ScanFor::kWritten : ScanFor::kProtected);
  };
  auto found = scanned();
  // Pins are looked for after the protection: those that came before it and are gone by now have written all they will.
  process.left_out = found ? has_pinned_pages(process.pid) : proc::has_ended(process.pid);
  if (process.left_out) return {};
  if (!found) return std::move(found).error();
  blocks = plan_data(*found, ScanFor::kWritten, process.maps).snapshot;
  process.protected_once = true;
  return {};
}

Result<store::CaptureIteration> Precopy::iterate(const std::function<Result<void>()>& barrier) {
  trace::Span span("iteration");
  const uint64_t begin = monotonic_us();
  std::vector<std::vector<BlockPlan>> blocks(processes_.size());
  CKPT_TRY(each_process([&](size_t i) { return scan_next(processes_[i], blocks[i]); }));
  std::vector<SpaceBlocks> parts;
  std::map<int, Process*> by_space;
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    if (process.left_out) continue;
    by_space[process.space] = &process;
    parts.push_back({process.space, process.pid, -1, 0, std::move(blocks[i])});
  }
  CKPT_TRY(barrier());
  CKPT_TRY_ASSIGN(Precopied copied, pre_copy(parts, iterations_++, writer_, options_));
  for (size_t i = 0; i < copied.missed.size(); ++i)
    by_space[copied.missed_space[i]]->missed.push_back(copied.missed[i]);
  drop_left_out();
  for (Process& process : processes_) {
    std::sort(process.missed.begin(), process.missed.end(),
              [](const auto& a, const auto& b) { return a.start < b.start; });
  }
  span.bytes(copied.bytes);
  return store::CaptureIteration{copied.bytes / store::kPageSize, monotonic_us() - begin};
}

void Precopy::leave_out(int pid) {
  for (Process& process : processes_) process.left_out |= process.pid == pid;
}

const Precopy::Process* Precopy::find(int pid) const {
  auto found =
      std::find_if(processes_.begin(), processes_.end(), [pid](const Process& process) { return process.pid == pid; });
  return found == processes_.end() ? nullptr : &*found;
}

const std::vector<proc::PageRegion>& Precopy::missed(int pid) const {
  static const std::vector<proc::PageRegion> kNone;
  const Process* process = find(pid);
  return process == nullptr ? kNone : process->missed;
}

}  // namespace ckpt::capture
