#include "lib/state/mappings/restore.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>

#include "lib/base/trace.h"
#include "lib/proc/host.h"
#include "lib/proc/procfs.h"
#include "lib/state/huge_pages/restore.h"
#include "lib/state/memory_policies/restore.h"
#include "lib/state/system_v_ipc/restore.h"

namespace ckpt::restore {

namespace {

using store::MappingKind;
using store::MemoryMap;

constexpr uint64_t kUserEnd = 0x7ffffffff000;

/// munmap of everything between the ranges to keep. The child still has ckpt's address space.
void unmap_all_but(std::vector<Range> keep, SyscallBatch& batch) {
  std::sort(keep.begin(), keep.end());
  keep.emplace_back(kUserEnd, kUserEnd);
  uint64_t at = 0;
  for (const auto& range : keep) {
    if (range.first > at) batch.add("empty the address space", SYS_munmap, at, range.first - at);
    at = std::max(at, range.second);  // one may lie in another
  }
}

struct VdsoPart {
  uint64_t own, aside, target, size;
};

/// The parts of the vdso that a child has: where its parent had put them, or ckpt's own.
Result<std::vector<MemoryMap>> born_with(const HeldMemory* held) {
  std::vector<MemoryMap> out;
  if (held != nullptr) {
    std::copy_if(held->layout.maps.begin(), held->layout.maps.end(), std::back_inserter(out),
                 [](const MemoryMap& map) { return map.kind == MappingKind::kVdso; });
    return out;
  }
  CKPT_TRY_ASSIGN(std::vector<proc::Vma> maps, proc::read_maps(::getpid(), false));
  for (const proc::Vma& vma : maps) {
    MemoryMap& map = out.emplace_back();
    map.start = vma.start, map.end = vma.end, map.name = vma.name;
  }
  return out;
}

/// Pairs the child's parts of the vdso with the places they had in the image. target 0: the image has none.
Result<std::vector<VdsoPart>> vdso_parts(const store::ProcessImage& image, const HeldMemory* held, uint64_t aside) {
  CKPT_TRY_ASSIGN(const std::vector<MemoryMap> maps, born_with(held));
  std::vector<VdsoPart> out;
  for (const auto& part : image.maps) {
    if (part.kind != MappingKind::kVdso) continue;
    auto own = std::find_if(maps.begin(), maps.end(), [&](const MemoryMap& map) { return map.name == part.name; });
    if (own == maps.end() || own->end - own->start != part.end - part.start) {
      return fail(Code::kUnsupported, part.name, "is not the same on this kernel");
    }
    out.push_back({own->start, aside, part.start, part.end - part.start});
    aside += part.end - part.start;
  }
  return out;
}

void move(SyscallBatch& batch, uint64_t from, uint64_t to, uint64_t size) {
  batch.add("move the vdso (sealed on this kernel?)", SYS_mremap, from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to);
}

void map_one(const MemoryMap& map, bool written, const OpenedFiles& files, SyscallBatch& batch) {
  int prot = map.prot | (written ? PROT_WRITE : 0);
  int flags = MAP_FIXED_NOREPLACE;
  int fd = -1;
  constexpr int kDroppable = 0x08;  // 6.11
  bool shared = map.kind == MappingKind::kSharedFile || map.kind == MappingKind::kSharedMemory;
  flags |= shared ? MAP_SHARED : map.kind == MappingKind::kDroppable ? kDroppable : MAP_PRIVATE;
  if (map.shared_memory >= 0) {
    const SharedMemoryFds& fds = files.shared_memory[static_cast<size_t>(map.shared_memory)];
    fd = !shared || maps_for_writing(map) ? fds.writable : fds.read_only;
  } else if (map.file >= 0) {
    fd = files.mapped.at({map.file, maps_for_writing(map)});
  } else {
    flags |= MAP_ANONYMOUS;
  }
  if (map.kind == MappingKind::kHugePages) flags |= MAP_HUGETLB | huge_page_flag(map.file_offset);
  if (has_flag(map, "nr")) flags |= MAP_NORESERVE;
  if (has_flag(map, "gd")) flags |= MAP_GROWSDOWN;
  batch.add(written ? "map memory that will be written" : "map memory", SYS_mmap, map.start, map.end - map.start, prot,
            flags, fd, fd < 0 ? 0 : map.file_offset);
}

/// The mapping comes with its pages, and is not filled.
void move_pages(const MemoryMap& map, uint64_t from, SyscallBatch& batch) {
  const uint64_t size = map.end - map.start;
  batch.add("move memory that the copies share", SYS_mremap, from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED,
            map.start);
}

/// For what is moved there later.
void keep_free(const MemoryMap& map, SyscallBatch& batch) {
  batch.add("keep a place free", SYS_mmap, map.start, map.end - map.start, PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

struct MadviseFlag {
  std::string_view flag;
  int advice;
  bool must_work;
};
// VmFlags of smaps and the madvise that sets them. What is only advice may be refused by a kernel built without it.
constexpr MadviseFlag kMadviseFlags[] = {
    {"dc", 10, true},   // MADV_DONTFORK
    {"wf", 18, true},   // MADV_WIPEONFORK
    {"dd", 16, false},  // MADV_DONTDUMP
    {"hg", 14, false},  // MADV_HUGEPAGE
    {"nh", 15, false},  // MADV_NOHUGEPAGE
    {"mg", 12, false},  // MADV_MERGEABLE
    {"rr", 1, false},   // MADV_RANDOM
    {"sr", 2, false},   // MADV_SEQUENTIAL
};

void advise(const MemoryMap& map, RestorerArea& area, SyscallBatch& batch) {
  for (const MadviseFlag& row : kMadviseFlags) {
    if (!has_flag(map, row.flag)) continue;
    uint64_t size = map.end - map.start;
    row.must_work ? batch.add("set a property of memory", SYS_madvise, map.start, size, row.advice)
                  : batch.try_add("advise on memory", SYS_madvise, map.start, size, row.advice);
  }
  for (std::string_view prefix : {"[anon:", "[anon_shmem:"}) {
    if (map.name.compare(0, prefix.size(), prefix) != 0 || map.name.back() != ']') continue;
    constexpr int kSetVma = 0x53564d41, kName = 0;
    std::string name = map.name.substr(prefix.size(), map.name.size() - prefix.size() - 1);
    batch.try_add("name memory", SYS_prctl, kSetVma, kName, map.start, map.end - map.start, area.put_string(name));
  }
}

bool is_segment(const store::TreeImage& tree, const MemoryMap& map) {
  return map.shared_memory >= 0 &&
         tree.shared_memory[static_cast<size_t>(map.shared_memory)].kind == store::SharedMemory::Kind::kSystemV;
}

/// A System V segment is attached as a whole, then what the process had unmapped of it is taken away again. Before the
/// other mappings, some of which may lie in such a gap.
void attach_segments(const store::TreeImage& tree, const store::ProcessImage& process, SyscallBatch& batch) {
  const auto& maps = process.maps;
  for (const MemoryMap& first : maps) {
    if (!is_segment(tree, first) || first.file_offset != 0) continue;
    const int id = tree.shared_memory[static_cast<size_t>(first.shared_memory)].id;
    const auto& segments = tree.ipc.segments;
    auto segment = std::find_if(segments.begin(), segments.end(), [&](const auto& s) { return s.identity.id == id; });
    const uint64_t end = first.start + (segment->size + store::kPageSize - 1) / store::kPageSize * store::kPageSize;
    const bool read_only = !maps_for_writing(first);
    attach_segment(*segment, first.start, read_only, batch);
    uint64_t at = first.start;
    for (const MemoryMap& part : maps) {
      if (part.shared_memory != first.shared_memory || part.start - part.file_offset != first.start) continue;
      if (part.start > at) batch.add("unmap a part of a segment", SYS_munmap, at, part.start - at);
      if (part.prot != (read_only ? PROT_READ : PROT_READ | PROT_WRITE))
        batch.add("protect a segment", SYS_mprotect, part.start, part.end - part.start, part.prot);
      at = part.end;
    }
    if (end > at) batch.add("unmap a part of a segment", SYS_munmap, at, end - at);
  }
}

}  // namespace

std::vector<Range> ranges_of(const store::TreeImage& tree) {
  std::vector<Range> all, out;
  for (const auto& process : tree.processes) {
    for (const auto& map : process.maps) all.emplace_back(map.start, map.end);
  }
  std::sort(all.begin(), all.end());
  for (const Range& range : all) {
    if (!out.empty() && range.first <= out.back().second) out.back().second = std::max(out.back().second, range.second);
    else out.push_back(range);
  }
  return out;
}

Result<void> lay_out_memory(const store::TreeImage& tree, const store::ProcessImage& process, const MemoryPlan& plan,
                            const OpenedFiles& files, Child& child) {
  RestorerArea& area = child.area();
  CKPT_TRY_ASSIGN(std::vector<VdsoPart> parts, vdso_parts(process, child.held(), area.aside()));
  SyscallBatch batch;
  std::vector<Range> keep = {{area.address(), area.address() + RestorerArea::kSize}};
  for (const auto& part : parts) keep.emplace_back(part.own, part.own + part.size);
  for (size_t i = 0; i < process.maps.size(); ++i) {
    const MemoryMap& map = process.maps[i];
    if (plan.supply[i] == Supply::kInherit) keep.emplace_back(map.start, map.end);
    if (plan.supply[i] == Supply::kMove) keep.emplace_back(plan.from[i], plan.from[i] + (map.end - map.start));
  }
  if (plan.kept.second != 0) keep.push_back(plan.kept);
  unmap_all_but(std::move(keep), batch);
  // Aside first: a part's own place may be where another mapping of the image goes.
  for (const auto& part : parts) move(batch, part.own, part.aside, part.size);
  attach_segments(tree, process, batch);
  for (size_t i = 0; i < process.maps.size(); ++i) {
    const MemoryMap& map = process.maps[i];
    if (map.kind == MappingKind::kVdso || plan.supply[i] == Supply::kInherit) continue;
    if (map.kind == MappingKind::kIoUring) continue;  // map_rings
    if (map.kind == MappingKind::kAio) {
      keep_free(map, batch);
      continue;
    }
    if (plan.supply[i] == Supply::kMove) move_pages(map, plan.from[i], batch);
    else if (!is_segment(tree, map)) map_one(map, plan.supply[i] == Supply::kWrite, files, batch);
    advise(map, area, batch);
  }
  for (const store::MappingPolicy& policy : process.policies) {
    auto is_it = [&](const MemoryMap& map) { return map.start == policy.start; };
    auto map = std::find_if(process.maps.begin(), process.maps.end(), is_it);
    if (map == process.maps.end())
      return fail(
          Code::kCorrupt, "",
          fmt::format("the image contradicts itself: a NUMA policy for {:x}, where no mapping begins", policy.start));
    set_mapping_policy(policy.policy, map->start, map->end, area, batch);
  }
  for (const auto& part : parts) move(batch, part.aside, part.target, part.size);
  return child.run(batch);
}

Result<void> drop_pages(const std::vector<Range>& pages, Child& child) {
  SyscallBatch batch;
  for (const Range& range : pages)
    batch.add("drop memory of its parent", SYS_madvise, range.first, range.second - range.first, MADV_DONTNEED);
  return child.run(batch);
}

namespace {

/// Locks count against the limit that ckpt has, until the process has its own again.
void raise_lock_limit(const store::ProcessImage& process, RestorerArea& area, SyscallBatch& batch) {
  constexpr int kSysResource = 24;
  const bool locks = process.future_locks != 0 ||
                     std::any_of(process.maps.begin(), process.maps.end(),
                                 [](const MemoryMap& map) { return has_flag(map, "lo"); });
  if (!locks) return;
  rlimit most{RLIM_INFINITY, RLIM_INFINITY};
  if (!proc::has_capability(kSysResource) && ::getrlimit(RLIMIT_MEMLOCK, &most) == 0) most.rlim_cur = most.rlim_max;
  batch.try_add("raise the limit of locked memory", SYS_prlimit64, 0, RLIMIT_MEMLOCK, area.put(most), 0);
}

}  // namespace

void protect_memory(const store::ProcessImage& process, const MemoryPlan& plan, RestorerArea& area,
                    SyscallBatch& batch) {
  raise_lock_limit(process, area, batch);
  const auto& maps = process.maps;
  constexpr int kGuardInstall = 102, kSysMseal = 462;
  for (size_t i = 0; i < maps.size(); ++i) {
    const MemoryMap& map = maps[i];
    if (map.kind == MappingKind::kVdso) continue;
    const Supply supply = plan.supply[i];
    const bool writable = supply == Supply::kWrite || supply == Supply::kInherit;
    // What was moved can be read and written, and nothing else.
    const bool is_as_moved = supply != Supply::kMove || map.prot == (PROT_READ | PROT_WRITE);
    if ((writable && (map.prot & PROT_WRITE) == 0) || !is_as_moved)
      batch.add("protect memory", SYS_mprotect, map.start, map.end - map.start, map.prot);
    for (const auto& guard : map.guards)
      batch.add("install guard pages", SYS_madvise, guard.first, guard.second - guard.first, kGuardInstall);
    // A lock populates what it covers, and fails for pages that the process may not touch itself: it holds all the
    // same.
    constexpr int kOnFault = 1;
    if (has_flag(map, "lo"))
      batch.try_add("lock memory", SYS_mlock2, map.start, map.end - map.start, has_flag(map, "lf") ? kOnFault : 0);
    if (has_flag(map, "sl")) batch.try_add("seal memory", kSysMseal, map.start, map.end - map.start, 0);
  }
}

void lock_future_memory(const store::ProcessImage& process, SyscallBatch& batch) {
  if ((process.future_locks & MCL_FUTURE) != 0)
    batch.try_add("lock memory to come", SYS_mlockall, process.future_locks & (MCL_FUTURE | MCL_ONFAULT));
}

void tell_unlocked(const SyscallBatch& batch, const Child& child, ProgressSink& progress) {
  std::map<uint64_t, size_t> failed;  // by address
  for (size_t i = 0; i < batch.size(); ++i) {
    const Call& call = batch.calls()[i];
    if (call.result >= 0) continue;
    if (call.number == SYS_mlock2) failed.emplace(call.args[0], i);
    if (call.number == SYS_mlockall)
      progress.note(fmt::format("process {}: what it maps from now on is not locked: {}", child.pid(),
                                batch.failure(i).text()));
  }
  if (failed.empty()) return;
  // A lock whose pages could not all be brought in holds all the same.
  (void)proc::each_mapping(child.pid(), true, [&](proc::Vma& vma) {
    if (vma.has_flag("lo")) failed.erase(failed.lower_bound(vma.start), failed.lower_bound(vma.end));
  });
  for (const auto& [start, i] : failed) {
    progress.note(fmt::format("process {}: memory at {:x}, {} bytes of it, is not locked: {}", child.pid(), start,
                              batch.calls()[i].args[1], batch.failure(i).text()));
  }
}

}  // namespace ckpt::restore
