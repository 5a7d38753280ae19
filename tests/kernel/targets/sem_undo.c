// A process with a thread, and so with a list of semaphore adjustments, that has used some with SEM_UNDO and given back
// what it took: of several sets, of which one has been removed since.
#include <sys/ipc.h>
#include <sys/sem.h>

#include "../target.h"

enum { kSets = 3, kSemaphores = 7 };
static int g_set[kSets];

static void change(int which, int semaphore, int by) {
  struct sembuf change = {.sem_num = (unsigned short)semaphore, .sem_op = (short)by, .sem_flg = SEM_UNDO | IPC_NOWAIT};
  CHECK_EQUAL(semop(g_set[which], &change, 1), 0);
}

static void* idle(void* unused) {
  for (;;) sleep_ms(1000);
  return unused;
}

static void step(int number) {
  change(0, 6, number);
  change(0, 6, -number);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  for (int i = 0; i < kSets; ++i) {
    g_set[i] = semget(IPC_PRIVATE, kSemaphores, IPC_CREAT | 0600);
    if (g_set[i] < 0) target_skip("no semaphores here: %s", strerror(errno));
    for (int k = 0; k < kSemaphores; ++k) CHECK_EQUAL(semctl(g_set[i], k, SETVAL, 10 * i + k), 0);
  }
  start_thread(idle, NULL);
  change(0, 6, -2), change(0, 6, 2);
  change(1, 3, 5), change(1, 3, -5);
  change(2, 1, -1);
  CHECK_EQUAL(semctl(g_set[2], 0, IPC_RMID), 0);

  target_ready();
  target_wait(step);

  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < kSemaphores; ++k) CHECK_EQUAL(semctl(g_set[i], k, GETVAL), 10 * i + k);
    CHECK_EQUAL(semctl(g_set[i], 0, IPC_RMID), 0);
  }
  target_pass();
}
