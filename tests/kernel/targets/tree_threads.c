// Children with threads of their own, blocked in different ways.
#include "target.h"

enum { kChildren = 3, kThreads = 4 };

static __thread uint64_t t_word;
static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_go = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t g_barrier;
static bool g_checking;
static int g_pipe[2];

static void* work(void* argument) {
  uint64_t index = (uint64_t)(uintptr_t)argument;
  pid_t tid = get_tid();
  t_word = mix(index, (uint64_t)getpid());
  pthread_barrier_wait(&g_barrier);
  if (index % 2 == 0) {
    pthread_mutex_lock(&g_mutex);
    while (!g_checking) pthread_cond_wait(&g_go, &g_mutex);
    pthread_mutex_unlock(&g_mutex);
  } else {
    char byte;
    CHECK_EQUAL(read(g_pipe[0], &byte, 1), 1);
  }
  CHECK_EQUAL(get_tid(), tid);
  CHECK(t_word == mix(index, (uint64_t)getpid()));
  return argument;
}

static int child(void* index) {
  int number = *(int*)index;
  pthread_t threads[kThreads];
  CHECK_EQUAL(pipe(g_pipe), 0);
  pthread_barrier_init(&g_barrier, NULL, kThreads + 1);
  for (uintptr_t i = 0; i < kThreads; ++i) threads[i] = start_thread(work, (void*)i);
  pthread_barrier_wait(&g_barrier);
  child_wait(1);
  pthread_mutex_lock(&g_mutex);
  g_checking = true;
  pthread_cond_broadcast(&g_go);
  pthread_mutex_unlock(&g_mutex);
  CHECK_EQUAL(write(g_pipe[1], "abcd", kThreads / 2), kThreads / 2);
  for (uintptr_t i = 0; i < kThreads; ++i) {
    void* answer = NULL;
    CHECK_EQUAL(pthread_join(threads[i], &answer), 0);
    CHECK(answer == (void*)i);
  }
  return 10 + number;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pid_t children[kChildren];
  for (int i = 0; i < kChildren; ++i) children[i] = start_child(child, &i);
  target_ready();
  target_wait(NULL);
  release(1);
  for (int i = 0; i < kChildren; ++i) expect_exit(children[i], 10 + i);
  target_pass();
}
