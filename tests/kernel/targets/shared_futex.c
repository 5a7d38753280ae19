// Mutex, condition and barrier between processes: one waits for the condition, one for the mutex, and one that owns a
// robust mutex dies with it.
#include "target.h"

struct Shared {
  pthread_mutex_t mutex, robust, contended;
  pthread_cond_t condition;
  int turn, passed;
};
static struct Shared* g_shared;

static int waits_for_condition(void* unused) {
  (void)unused;
  CHECK_EQUAL(pthread_mutex_lock(&g_shared->mutex), 0);
  child_ready();
  while (g_shared->turn == 0) CHECK_EQUAL(pthread_cond_wait(&g_shared->condition, &g_shared->mutex), 0);
  ++g_shared->passed;
  CHECK_EQUAL(pthread_mutex_unlock(&g_shared->mutex), 0);
  return 1;
}

static int waits_for_mutex(void* unused) {
  (void)unused;
  child_ready();
  CHECK_EQUAL(pthread_mutex_lock(&g_shared->contended), 0);
  ++g_shared->passed;
  CHECK_EQUAL(pthread_mutex_unlock(&g_shared->contended), 0);
  return 2;
}

static int dies_as_owner(void* unused) {
  (void)unused;
  CHECK_EQUAL(pthread_mutex_lock(&g_shared->robust), 0);
  child_wait(1);
  return 3;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_shared != MAP_FAILED);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  CHECK_EQUAL(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED), 0);
  CHECK_EQUAL(pthread_mutex_init(&g_shared->mutex, &attributes), 0);
  CHECK_EQUAL(pthread_mutex_init(&g_shared->contended, &attributes), 0);
  CHECK_EQUAL(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST), 0);
  CHECK_EQUAL(pthread_mutex_init(&g_shared->robust, &attributes), 0);
  pthread_condattr_t of_condition;
  pthread_condattr_init(&of_condition);
  CHECK_EQUAL(pthread_condattr_setpshared(&of_condition, PTHREAD_PROCESS_SHARED), 0);
  CHECK_EQUAL(pthread_cond_init(&g_shared->condition, &of_condition), 0);
  CHECK_EQUAL(pthread_mutex_lock(&g_shared->contended), 0);
  pid_t first = start_child(waits_for_condition, NULL), second = start_child(waits_for_mutex, NULL),
        owner = start_child(dies_as_owner, NULL);
  CHECK_EQUAL(pthread_mutex_lock(&g_shared->mutex), 0);  // free only once the first child waits
  CHECK_EQUAL(pthread_mutex_unlock(&g_shared->mutex), 0);
  sleep_ms(20);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(g_shared->passed, 0);
  CHECK_EQUAL(pthread_mutex_lock(&g_shared->mutex), 0);
  g_shared->turn = 1;
  CHECK_EQUAL(pthread_cond_signal(&g_shared->condition), 0);
  CHECK_EQUAL(pthread_mutex_unlock(&g_shared->mutex), 0);
  expect_exit(first, 1);
  CHECK_EQUAL(g_shared->passed, 1);
  CHECK_EQUAL(pthread_mutex_unlock(&g_shared->contended), 0);
  expect_exit(second, 2);
  CHECK_EQUAL(pthread_mutex_trylock(&g_shared->robust), EBUSY);
  release(1);
  expect_exit(owner, 3);
  CHECK_EQUAL(pthread_mutex_lock(&g_shared->robust), EOWNERDEAD);
  CHECK_EQUAL(g_shared->passed, 2);
  target_pass();
}
