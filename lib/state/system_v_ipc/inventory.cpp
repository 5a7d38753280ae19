// System V objects of the tree.
#include <fmt/format.h>
#include <sys/sem.h>

#include <algorithm>
#include <set>

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

/// The lists of adjustments of a tree's processes.
class Adjustments {
 public:
  explicit Adjustments(Walk& walk) : walk_(walk) {}

  Result<void> read(size_t process);
  /// Of sets that have adjustments.
  const std::set<int>& ids() const { return ids_; }
  /// Once the sets are described.
  void describe();

 private:
  Result<uint32_t> count_threads(size_t process);
  void block_waiting(const store::SemaphoreSet& set, size_t process);

  Walk& walk_;
  struct Found {
    size_t process;
    uint32_t threads;  ///< of it that have the list
    proc::SemaphoreUndoList list;
  };
  std::vector<Found> found_;
  std::set<int> ids_;
};

Result<void> Adjustments::read(size_t process) {
  const Member& member = walk_.members[process];
  auto list = proc::read_semaphore_undo(member.entry.pid, member.pidfd.get());
  if (!list && list.error().code == Code::kNotFound) return std::move(list).error();
  // Every process that ever had threads has a list: only in a tree that uses semaphores is anything in it, most likely.
  if (!list && walk_.out.image.ipc.sets.empty()) return {};
  if (!list) {
    walk_.out.block(process, "",
                    "may have semaphore adjustments (SEM_UNDO), which cannot be read: " + list.error().text());
    walk_.out.blockers.back().passes = list.error().code == Code::kBusy;
    return {};
  }
  uint32_t threads = 0;
  if (walk_.options.frozen) {
    CKPT_TRY_ASSIGN(threads, count_threads(process));
  }
  for (const proc::SemaphoreUndo& undo : list->sets) ids_.insert(undo.set);
  if (!list->sets.empty()) found_.push_back({process, threads, std::move(*list)});
  return {};
}

/// The threads of a process have one list, but for those that have let go of it: they have none.
Result<uint32_t> Adjustments::count_threads(size_t process) {
  const int pid = walk_.members[process].entry.pid;
  uint32_t out = 1;
  for (const store::Thread& thread : walk_.out.image.processes[process].threads) {
    if (thread.tid == pid) continue;
    CKPT_TRY_ASSIGN(const bool same, have_same_undo(pid, thread.tid));
    out += same ? 1 : 0;
    if (same) continue;
    CKPT_TRY_ASSIGN(const bool own, may_have_undo(thread.tid));
    if (!own) continue;
    walk_.out.block(process, "",
                    fmt::format("thread {} may have semaphore adjustments (SEM_UNDO) of its own, which is not "
                                "supported",
                                thread.tid));
  }
  return out;
}

/// The processes of the tree wait for nothing while they stand still: their calls are interrupted. Somebody else would
/// be let in by the adjustments that the end of a process makes, and not know that they are taken back by a restore.
void Adjustments::block_waiting(const store::SemaphoreSet& set, size_t process) {
  if (!walk_.options.frozen || !walk_.options.ends) return;
  for (size_t i = 0; i < set.semaphores.size(); ++i) {
    const int semaphore = static_cast<int>(i);
    if (::semctl(set.identity.id, semaphore, GETNCNT) <= 0 && ::semctl(set.identity.id, semaphore, GETZCNT) <= 0)
      continue;
    walk_.out.block(process, "",
                    fmt::format("has adjustments (SEM_UNDO) of semaphore set {}, for which a process outside waits",
                                set.identity.id));
    walk_.out.blockers.back().passes = true;
    return;
  }
}

void Adjustments::describe() {
  store::SystemVIpc& ipc = walk_.out.image.ipc;
  for (const auto& [process, threads, list] : found_) {
    if (walk_.options.frozen && list.tasks != threads)
      walk_.out.block(process, "",
                      "shares its semaphore adjustments with another process (CLONE_SYSVSEM), which is not supported");
    for (const proc::SemaphoreUndo& undo : list.sets) {
      const auto set = std::find_if(ipc.sets.begin(), ipc.sets.end(),
                                    [&](const store::SemaphoreSet& s) { return s.identity.id == undo.set; });
      if (set == ipc.sets.end() || set->semaphores.size() != undo.changes.size()) continue;  // it has been removed
      block_waiting(*set, process);
      ipc.adjustments.push_back({static_cast<int>(process), static_cast<int>(set - ipc.sets.begin()),
                                 {undo.changes.begin(), undo.changes.end()}});
    }
  }
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
  Adjustments adjustments(walk);
  for (size_t i : suspects) CKPT_TRY(adjustments.read(i));
  if (!adjustments.ids().empty()) {
    CKPT_TRY_ASSIGN(walk.out.image.ipc, describe_ipc(pids, attached, adjustments.ids()));
  }
  adjustments.describe();
  CKPT_TRY(block_what_ends_with_its_namespace(walk));
  if (!walk.options.frozen) return {};
  for (const store::SharedSegment& segment : walk.out.image.ipc.segments)
    CKPT_TRY(walk.shared_memory.add_segment(segment));
  return {};
}

}  // namespace ckpt::capture
