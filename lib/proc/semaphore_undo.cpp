#include "lib/proc/semaphore_undo.h"

#include <sys/sem.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/proc/kernel_memory.h"

namespace ckpt::proc {

namespace {

/// The kernel's short numbers, four in a word.
Result<std::vector<int16_t>> read_changes(const KernelMemory& kernel, uint64_t undo, uint64_t count) {
  constexpr uint64_t kInWord = sizeof(uint64_t) / sizeof(int16_t);
  CKPT_TRY_ASSIGN(const uint64_t offset, kernel.offset_of("sem_undo", "semadj"));
  CKPT_TRY_ASSIGN(const uint64_t size, kernel.size_of("sem_undo"));
  uint64_t numbers = undo + offset;
  if (offset + sizeof(uint64_t) <= size) {  // an array of their own, before Linux 6.6 or so
    CKPT_TRY_ASSIGN(numbers, kernel.word_at(numbers));
  }
  std::vector<int16_t> out(count);
  for (uint64_t i = 0; i < count; i += kInWord) {
    CKPT_TRY_ASSIGN(const uint64_t word, kernel.word_at(numbers + i * sizeof(int16_t)));
    std::memcpy(&out[i], &word, std::min(kInWord, count - i) * sizeof(int16_t));
  }
  return out;
}

/// A set that has been removed has none.
Result<SemaphoreUndo> read_undo(const KernelMemory& kernel, uint64_t undo) {
  SemaphoreUndo out;
  CKPT_TRY_ASSIGN(out.set, kernel.read<int>(undo, "sem_undo", "semid"));
  semid_ds state{};
  union {
    semid_ds* state;
  } argument{&state};
  if (out.set < 0) return out;
  if (::semctl(out.set, 0, IPC_STAT, argument) != 0) {
    const bool removed = errno == EINVAL || errno == EIDRM;
    return removed ? Result<SemaphoreUndo>(out) : sys_error("semaphores", "cannot be asked for");
  }
  CKPT_TRY_ASSIGN(out.changes, read_changes(kernel, undo, state.sem_nsems));
  return out;
}

}  // namespace

Result<SemaphoreUndoList> read_semaphore_undo(int pid, int pidfd) {
  constexpr int kMost = 1 << 16;
  SemaphoreUndoList out;
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const uint64_t task, kernel->task_of(pid, pidfd));
  CKPT_TRY_ASSIGN(const uint64_t list, kernel->read<uint64_t>(task, "task_struct", "sysvsem"));
  if (list == 0) return out;
  CKPT_TRY_ASSIGN(out.tasks, kernel->read<uint32_t>(list, "sem_undo_list", "refcnt"));
  CKPT_TRY_ASSIGN(const uint64_t begin, kernel->offset_of("sem_undo_list", "list_proc"));
  CKPT_TRY_ASSIGN(const uint64_t link, kernel->offset_of("sem_undo", "list_proc"));
  CKPT_TRY_ASSIGN(uint64_t at, kernel->word_at(list + begin));
  for (int i = 0; at != list + begin; ++i) {
    if (i == kMost) return fail(Code::kBusy, "semaphores", "are being worked on");
    CKPT_TRY_ASSIGN(SemaphoreUndo undo, read_undo(*kernel, at - link));
    const bool any = std::any_of(undo.changes.begin(), undo.changes.end(), [](int16_t change) { return change != 0; });
    if (any) out.sets.push_back(std::move(undo));
    CKPT_TRY_ASSIGN(at, kernel->word_at(at));
  }
  // The kernel has the last one that was used first.
  std::sort(out.sets.begin(), out.sets.end(), [](const auto& a, const auto& b) { return a.set < b.set; });
  return out;
}

}  // namespace ckpt::proc
