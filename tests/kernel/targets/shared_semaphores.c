// POSIX semaphores with a name and without, between processes; one of them is waited for.
#include <semaphore.h>

#include "target.h"

static sem_t* g_named;
static sem_t* g_inside;  // two, in shared memory: the second has a waiter

static int waiter(void* unused) {
  (void)unused;
  child_ready();
  CHECK_EQUAL(sem_wait(&g_inside[1]), 0);
  CHECK_EQUAL(sem_post(g_named), 0);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  char name[256];
  target_shm_name(name, sizeof name, "sem");
  g_named = sem_open(name, O_CREAT | O_EXCL, 0600, 3);
  if (g_named == SEM_FAILED) target_skip("sem_open: %s", strerror(errno));
  CHECK_EQUAL(sem_unlink(name), 0);
  g_inside = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_inside != MAP_FAILED);
  CHECK(sem_init(&g_inside[0], 1, 8) == 0 && sem_init(&g_inside[1], 1, 0) == 0);
  pid_t below = start_child(waiter, NULL);
  sleep_ms(20);
  target_ready();
  target_wait(NULL);
  int value = 0;
  CHECK(sem_getvalue(&g_inside[0], &value) == 0 && value == 8);
  CHECK(sem_getvalue(&g_inside[1], &value) == 0 && value == 0);
  CHECK(sem_getvalue(g_named, &value) == 0 && value == 3);
  CHECK_EQUAL(sem_post(&g_inside[1]), 0);
  expect_exit(below, 1);
  CHECK(sem_getvalue(g_named, &value) == 0 && value == 4);
  target_pass();
}
