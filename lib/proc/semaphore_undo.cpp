#include "lib/proc/semaphore_undo.h"

#include <sys/sem.h>

#include <cerrno>

#include "lib/proc/kernel_memory.h"

namespace ckpt::proc {

namespace {

/// The kernel's short numbers, four in a word.
Result<bool> any_adjustment(const KernelMemory& kernel, uint64_t undo, uint64_t count) {
  constexpr uint64_t kInWord = sizeof(uint64_t) / sizeof(uint16_t);
  CKPT_TRY_ASSIGN(const uint64_t offset, kernel.offset_of("sem_undo", "semadj"));
  CKPT_TRY_ASSIGN(const uint64_t size, kernel.size_of("sem_undo"));
  uint64_t numbers = undo + offset;
  if (offset + sizeof(uint64_t) <= size) {  // an array of their own, before Linux 6.6 or so
    CKPT_TRY_ASSIGN(numbers, kernel.word_at(numbers));
  }
  for (uint64_t i = 0; i < count; i += kInWord) {
    CKPT_TRY_ASSIGN(uint64_t word, kernel.word_at(numbers + i * sizeof(uint16_t)));
    if (count - i < kInWord) word &= (uint64_t{1} << 16 * (count - i)) - 1;
    if (word != 0) return true;
  }
  return false;
}

/// Of one set of semaphores; a set that has been removed has none.
Result<bool> has_any(const KernelMemory& kernel, uint64_t undo) {
  CKPT_TRY_ASSIGN(const int set, kernel.read<int>(undo, "sem_undo", "semid"));
  semid_ds state{};
  union {
    semid_ds* state;
  } argument{&state};
  if (set < 0) return false;
  if (::semctl(set, 0, IPC_STAT, argument) != 0) {
    const bool removed = errno == EINVAL || errno == EIDRM;
    return removed ? Result<bool>(false) : Result<bool>(sys_error("semaphores", "cannot be asked for"));
  }
  return any_adjustment(kernel, undo, state.sem_nsems);
}

}  // namespace

Result<bool> has_semaphore_undo(int pid, int pidfd) {
  constexpr int kMost = 1 << 16;
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const uint64_t task, kernel->task_of(pid, pidfd));
  CKPT_TRY_ASSIGN(const uint64_t list, kernel->read<uint64_t>(task, "task_struct", "sysvsem"));
  if (list == 0) return false;
  CKPT_TRY_ASSIGN(const uint64_t begin, kernel->offset_of("sem_undo_list", "list_proc"));
  CKPT_TRY_ASSIGN(const uint64_t link, kernel->offset_of("sem_undo", "list_proc"));
  CKPT_TRY_ASSIGN(uint64_t at, kernel->word_at(list + begin));
  for (int i = 0; at != list + begin; ++i) {
    CKPT_TRY_ASSIGN(const bool any, has_any(*kernel, at - link));
    if (any || i == kMost) return true;
    CKPT_TRY_ASSIGN(at, kernel->word_at(at));
  }
  return false;
}

}  // namespace ckpt::proc
