// Three hundred threads that sleep on one condition, and one more started and joined after the restore.
#include "target.h"

enum { kThreads = 300 };

static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_go = PTHREAD_COND_INITIALIZER;
static bool g_checking;
static pid_t g_tid[kThreads];
static int g_started, g_right;

static void* work(void* argument) {
  pid_t* tid = argument;
  uint64_t local[64];
  fill_words(local, sizeof local, (uintptr_t)tid);
  pthread_mutex_lock(&g_mutex);
  *tid = get_tid();
  ++g_started;
  while (!g_checking) pthread_cond_wait(&g_go, &g_mutex);
  if (*tid == get_tid() && first_wrong(local, sizeof local, (uintptr_t)tid) == -1) ++g_right;
  pthread_mutex_unlock(&g_mutex);
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pthread_t thread[kThreads];
  for (int i = 0; i < kThreads; ++i) thread[i] = start_thread(work, &g_tid[i]);
  for (bool all = false; !all; sleep_ms(1)) {
    pthread_mutex_lock(&g_mutex);
    all = g_started == kThreads;
    pthread_mutex_unlock(&g_mutex);
  }
  target_ready();
  target_wait(NULL);
  pthread_mutex_lock(&g_mutex);
  g_checking = true;
  pthread_cond_broadcast(&g_go);
  pthread_mutex_unlock(&g_mutex);
  for (int i = 0; i < kThreads; ++i) CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
  CHECK_EQUAL(g_right, kThreads);
  pid_t extra = 0;
  CHECK_EQUAL(pthread_join(start_thread(work, &extra), NULL), 0);
  CHECK(extra != 0);
  target_pass();
}
