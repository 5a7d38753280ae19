// System V objects of the tree.
#include <fmt/format.h>

#include <algorithm>

#include "lib/proc/semaphore_undo.h"
#include "lib/state/namespaces/entered.h"
#include "lib/state/system_v_ipc/capture.h"
#include "lib/state/walk.h"
#include "lib/store/image.h"

namespace ckpt::capture {

namespace {

const store::SharedMemory* segment_of(const Walk& walk, const store::MemoryMap& map) {
  if (map.shared_memory < 0) return nullptr;
  const store::SharedMemory& memory = walk.out.image.shared_memory[static_cast<size_t>(map.shared_memory)];
  return memory.kind == store::SharedMemory::Kind::kSystemV ? &memory : nullptr;
}

/// Restore attaches whole segments and takes away what had been unmapped: the first page must still be there.
void check_attachments(Walk& walk, size_t process) {
  const auto& maps = walk.out.image.processes[process].maps;
  for (size_t i = 0; i < maps.size(); ++i) {
    const store::SharedMemory* memory = segment_of(walk, maps[i]);
    if (memory == nullptr) continue;
    const store::MemoryMap& map = maps[i];
    auto is_first = [&](const store::MemoryMap& other) {
      return other.shared_memory == map.shared_memory && other.file_offset == 0 &&
             other.start == map.start - map.file_offset;
    };
    const uint64_t size = (memory->size + store::kPageSize - 1) / store::kPageSize * store::kPageSize;
    const bool whole = std::any_of(maps.begin(), maps.begin() + static_cast<long>(i) + 1, is_first);
    if (whole && map.file_offset + (map.end - map.start) <= size) continue;
    walk.out.block(
        process, fmt::format("mapping {:x}-{:x} {}", map.start, map.end, map.name),
        "a part of a System V segment whose beginning is not mapped with it, or more than it has: not supported");
  }
}

/// What a process holds by SEM_UNDO it gives back sooner or later, and the kernel does it at its end.
Result<void> block_adjustments(Walk& walk, size_t process) {
  const Member& member = walk.members[process];
  auto any = proc::has_semaphore_undo(member.entry.pid, member.pidfd.get());
  if (!any && any.error().code == Code::kNotFound) return std::move(any).error();
  if (!any)
    walk.out.block(process, "",
                   "may have semaphore adjustments (SEM_UNDO), which cannot be read: " + any.error().text());
  if (!any || !*any) return {};
  walk.out.block(process, "", "has semaphore adjustments (SEM_UNDO), which are not supported");
  walk.out.blockers.back().passes = true;
  return {};
}

/// An IPC namespace ends with process 1 of its container, and all that is in it: also what nobody of the tree has used.
Result<void> block_what_ends_with_its_namespace(Walk& walk) {
  constexpr int kInit = 1;
  const state::Entered* entered = state::entered();
  const bool own = entered != nullptr && std::count(entered->kinds.begin(), entered->kinds.end(), "ipc") != 0;
  if (!own || walk.members[0].entry.pid != kInit || !walk.options.ends) return {};
  const store::SystemVIpc& ours = walk.out.image.ipc;
  CKPT_TRY_ASSIGN(const size_t all, count_ipc());
  const size_t known = ours.segments.size() + ours.sets.size() + ours.queues.size();
  if (all > known) {
    walk.out.block(0, "namespace ipc",
                   fmt::format("{} System V objects that no process of the tree has made or used: they would be lost",
                               all - known),
                   "--leave-running");
  }
  return {};
}

}  // namespace

Result<void> inventory_ipc(Walk& walk) {
  std::vector<int> pids;
  std::set<int> attached;
  std::vector<size_t> suspects;
  for (size_t i = 0; i < walk.members.size(); ++i) {
    const int pid = walk.members[i].entry.pid;
    pids.push_back(pid);
    if (walk.members[i].entry.zombie) continue;
    check_attachments(walk, i);
    auto undo = may_have_undo(pid);
    if (!undo && undo.error().code == Code::kNotFound) continue;
    if (!undo) return std::move(undo).error();
    if (*undo) suspects.push_back(i);
  }
  if (!walk.options.frozen && suspects.empty()) return {};
  for (const store::SharedMemory& memory : walk.out.image.shared_memory) {
    if (memory.kind == store::SharedMemory::Kind::kSystemV) attached.insert(memory.id);
  }
  std::sort(pids.begin(), pids.end());
  CKPT_TRY_ASSIGN(walk.out.image.ipc, describe_ipc(pids, attached));
  CKPT_TRY(block_what_ends_with_its_namespace(walk));
  // Every process that ever had threads has a list: only in a tree that uses semaphores is anything in it.
  if (!walk.out.image.ipc.sets.empty()) {
    for (size_t i : suspects) CKPT_TRY(block_adjustments(walk, i));
  }
  if (!walk.options.frozen) return {};
  for (const store::SharedSegment& segment : walk.out.image.ipc.segments)
    CKPT_TRY(walk.shared_memory.add_segment(segment));
  return {};
}

}  // namespace ckpt::capture
