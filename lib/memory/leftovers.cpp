#include "lib/memory/leftovers.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "lib/proc/borrowed_thread.h"
#include "lib/proc/frozen_process.h"
#include "lib/proc/parasite_code.h"
#include "lib/proc/seen_number.h"

namespace ckpt::capture {

namespace {

using proc::ParasiteArea;

constexpr uint64_t kMostBytes = 1 << 20;  ///< of neighbours, which the kernel shows as one mapping

bool may_hold_areas(const proc::Vma& vma) {
  constexpr int kAll = PROT_READ | PROT_WRITE | PROT_EXEC;
  const uint64_t size = vma.end - vma.start;
  return vma.prot == kAll && !vma.shared && vma.inode == 0 && vma.name.empty() && size % ParasiteArea::kSize == 0 &&
         size <= kMostBytes;
}

/// Within a mapping that may hold areas.
bool is_ours(int pid, uint64_t at) {
  return at == proc::kParasiteAddress || proc::is_parasite(pid, proc::RemoteAddress(at));
}

/// A thread that was abandoned in a call restores itself by code and a frame that lie there.
Result<void> check_not_in_use(const proc::FrozenProcess& frozen, const Leftovers& left) {
  for (int tid : frozen.threads()) {
    CKPT_TRY_ASSIGN(user_regs_struct regs, proc::get_registers(tid));
    for (uint64_t start : left.areas) {
      auto inside = [start](uint64_t address) { return address - start < ParasiteArea::kSize; };
      if (inside(regs.rip) || inside(regs.rsp))
        return fail(Code::kBusy, proc::describe_pid(frozen.pid()),
                    "has a thread that is still on its way out of ckpt's code");
    }
  }
  return {};
}

}  // namespace

bool is_dead_snapshot(const proc::Stat& stat) {
  const bool held = stat.exit_status == SIGKILL && stat.minor_faults == 0;
  return stat.is_zombie() && stat.exit_signal == 0 && (held || stat.exit_status == proc::kUnheldSnapshotExit << 8);
}

Leftovers find_leftovers(int pid, const std::vector<proc::Vma>& maps) {
  Leftovers out;
  for (const proc::Vma& vma : maps) {
    for (uint64_t at = vma.start; may_hold_areas(vma) && at < vma.end; at += ParasiteArea::kSize) {
      if (is_ours(pid, at)) out.areas.push_back(at);
    }
  }
  const auto children = proc::read_children(pid);
  for (int child : children ? *children : std::vector<int>()) {
    const auto stat = proc::read_stat(child);
    if (stat && is_dead_snapshot(*stat)) out.snapshots.push_back(child);
  }
  return out;
}

Result<void> clear_leftovers(int pid, Leftovers left) {
  constexpr uint64_t kFreezeTimeoutUs = 10'000'000;
  Cancel never;
  CKPT_TRY_ASSIGN(proc::FrozenProcess frozen, proc::FrozenProcess::freeze(pid, kFreezeTimeoutUs, never));
  // What was found while it ran may have gone since, and something else be in its place.
  std::erase_if(left.areas, [pid](uint64_t at) { return !is_ours(pid, at); });
  std::erase_if(left.snapshots, [pid](int child) {
    const auto stat = proc::read_stat(child);
    return !stat || stat->parent != pid || !is_dead_snapshot(*stat);
  });
  if (left.empty()) return {};
  CKPT_TRY(check_not_in_use(frozen, left));
  CKPT_TRY_ASSIGN(std::vector<proc::Vma> maps, proc::read_maps(pid, false));
  std::erase_if(maps, [&](const proc::Vma& vma) {
    return std::any_of(left.areas.begin(), left.areas.end(),
                       [&](uint64_t at) { return vma.start <= at && at < vma.end; });
  });
  CKPT_TRY_ASSIGN(proc::Gadgets gadgets, proc::find_gadgets(pid, maps));
  CKPT_TRY_ASSIGN(ParasiteArea area, ParasiteArea::map(pid, pid, gadgets));
  {
    CKPT_TRY_ASSIGN(proc::BorrowedThread thread, proc::BorrowedThread::begin(area, pid));
    for (int child : left.snapshots) {
      const auto number = static_cast<uint64_t>(proc::number_seen_by(pid, child));
      CKPT_TRY(thread.call(SYS_wait4, {number, 0, static_cast<uint64_t>(__WALL) | WNOHANG, 0}));
    }
    for (uint64_t at : left.areas) CKPT_TRY(thread.call(SYS_munmap, {at, ParasiteArea::kSize}));
    CKPT_TRY(thread.finish());
  }
  CKPT_TRY(area.unmap());
  frozen.release();
  return {};
}

}  // namespace ckpt::capture
