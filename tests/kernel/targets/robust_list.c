// A robust mutex is held by a thread that ends after the restore: the next owner must be told.
#include "target.h"

static pthread_mutex_t g_mutex, g_second;
static volatile bool g_held, g_end;

static void* hold(void* unused) {
  pthread_mutex_lock(&g_mutex);
  pthread_mutex_lock(&g_second);
  g_held = true;
  while (!g_end) sleep_ms(2);
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&g_mutex, &attributes);
  pthread_mutex_init(&g_second, &attributes);
  pthread_t thread = start_thread(hold, NULL);
  while (!g_held) sleep_ms(1);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(pthread_mutex_trylock(&g_mutex), EBUSY);
  g_end = true;
  CHECK_EQUAL(pthread_mutex_lock(&g_mutex), EOWNERDEAD);
  CHECK_EQUAL(pthread_mutex_consistent(&g_mutex), 0);
  CHECK_EQUAL(pthread_mutex_unlock(&g_mutex), 0);
  CHECK_EQUAL(pthread_mutex_lock(&g_second), EOWNERDEAD);
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  target_pass();
}
