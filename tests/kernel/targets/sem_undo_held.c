// Semaphores that processes hold by SEM_UNDO: of one set a process and its child, each with changes up and down, the
// largest ones too. At the end of the child the kernel makes its changes, and the parent gives its own back.
#include <sys/ipc.h>
#include <sys/sem.h>

#include "../target.h"

enum { kSemaphores = 6, kMost = 32767 };
static int g_set, g_own;

static void change(int set, int semaphore, int by, int flags) {
  const short all = (short)(flags | IPC_NOWAIT);
  struct sembuf one = {.sem_num = (unsigned short)semaphore, .sem_op = (short)by, .sem_flg = all};
  CHECK_EQUAL(semop(set, &one, 1), 0);
}

static void* idle(void* unused) {
  for (;;) sleep_ms(1000);
  return unused;
}

static int hold_in_child(void* unused) {
  (void)unused;
  change(g_set, 0, -2, SEM_UNDO);
  change(g_set, 1, 7, SEM_UNDO);
  change(g_set, 5, -1, SEM_UNDO);
  child_wait(1);
  return 0;
}

static void expect_values(const int* values) {
  for (int i = 0; i < kSemaphores; ++i) CHECK_EQUAL(semctl(g_set, i, GETVAL), values[i]);
}

static void step(int number) {
  change(g_own, 0, -1, SEM_UNDO);
  change(g_own, 0, 1, SEM_UNDO);
  change(g_own, 1, number, 0);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_set = semget(IPC_PRIVATE, kSemaphores, IPC_CREAT | 0600);
  g_own = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);
  if (g_set < 0 || g_own < 0) target_skip("no semaphores here: %s", strerror(errno));
  const int first[kSemaphores] = {10, 10, kMost, 0, kMost / 2, 1};
  for (int i = 0; i < kSemaphores; ++i) CHECK_EQUAL(semctl(g_set, i, SETVAL, first[i]), 0);
  CHECK_EQUAL(semctl(g_own, 0, SETVAL, 1), 0);
  CHECK_EQUAL(semctl(g_own, 1, SETVAL, 0), 0);
  start_thread(idle, NULL);
  change(g_set, 2, -kMost, SEM_UNDO);  // no larger change is allowed
  change(g_set, 2, kMost / 2, 0);
  change(g_set, 3, kMost, SEM_UNDO);
  change(g_set, 4, -3, SEM_UNDO);
  change(g_set, 0, -3, SEM_UNDO);
  change(g_own, 0, -1, SEM_UNDO);
  change(g_own, 0, 1, 0);
  pid_t child = start_child(hold_in_child, NULL);
  const int held[kSemaphores] = {5, 17, kMost / 2, kMost, kMost / 2 - 3, 0};
  expect_values(held);
  change(g_set, 0, 1, 0), change(g_set, 0, -1, 0);
  CHECK_EQUAL(semctl(g_set, 0, GETPID), getpid());

  target_ready();
  target_wait(step);

  expect_values(held);
  CHECK_EQUAL(semctl(g_set, 0, GETPID), getpid());
  CHECK_EQUAL(semctl(g_set, 1, GETPID), child);
  release(1);
  expect_exit(child, 0);
  const int after[kSemaphores] = {7, 10, kMost / 2, kMost, kMost / 2 - 3, 1};
  expect_values(after);
  struct sembuf beyond = {.sem_num = 2, .sem_op = -1, .sem_flg = SEM_UNDO | IPC_NOWAIT};
  CHECK(semop(g_set, &beyond, 1) == -1 && errno == ERANGE);
  change(g_set, 3, -kMost, SEM_UNDO);
  change(g_set, 4, 3, SEM_UNDO);
  change(g_set, 0, 3, SEM_UNDO);
  CHECK_EQUAL(semctl(g_own, 0, GETVAL), 1);
  CHECK_EQUAL(semctl(g_set, 0, IPC_RMID), 0);
  CHECK_EQUAL(semctl(g_own, 0, IPC_RMID), 0);
  target_pass();
}
