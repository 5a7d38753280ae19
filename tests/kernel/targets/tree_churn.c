// Children that fork, execute and end all the time: whatever a look at the tree finds half-way is carried whole, or has
// ended.
#include <spawn.h>
#include <sys/wait.h>

#include "target.h"

extern char** environ;

struct Shared {
  int64_t iterations[3];
  int end;
};
static volatile struct Shared* g_shared;

static int forks(void* unused) {
  (void)unused;
  child_ready();
  while (!g_shared->end) {
    int64_t round = g_shared->iterations[0];
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      g_shared->iterations[0] = round + 1;
      _exit((int)(round % 100));
    }
    expect_exit(child, (int)(round % 100));
    CHECK_EQUAL(g_shared->iterations[0], round + 1);
    sleep_ms(1);
  }
  expect_childless();
  return 1;
}

static int executes(void* unused) {
  (void)unused;
  child_ready();
  char* command[] = {"sh", "-c", "exit 42", NULL};
  while (!g_shared->end) {
    pid_t child = 0;
    CHECK_EQUAL(posix_spawnp(&child, "sh", NULL, NULL, command, environ), 0);
    expect_exit(child, 42);
    ++g_shared->iterations[1];
  }
  expect_childless();
  return 2;
}

static void* ends_at_once(void* value) { return value; }

static int threads(void* unused) {
  (void)unused;
  child_ready();
  while (!g_shared->end) {
    void* answer = NULL;
    CHECK_EQUAL(pthread_join(start_thread(ends_at_once, (void*)(uintptr_t)g_shared->iterations[2]), &answer), 0);
    CHECK((int64_t)(uintptr_t)answer == g_shared->iterations[2]);
    ++g_shared->iterations[2];
    sleep_ms(1);
  }
  return 3;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_shared != MAP_FAILED);
  pid_t forking = start_child(forks, NULL), executing = start_child(executes, NULL),
        threading = start_child(threads, NULL);
  target_ready();
  target_wait(NULL);
  struct Shared before;
  memcpy(&before, (const void*)g_shared, sizeof before);
  for (int i = 0; i < 3; ++i)
    for (int wait = 0; wait < 5000 && g_shared->iterations[i] < before.iterations[i] + 5; ++wait) sleep_ms(1);
  for (int i = 0; i < 3; ++i) CHECK(g_shared->iterations[i] >= before.iterations[i] + 5);
  g_shared->end = 1;
  expect_exit(forking, 1);
  expect_exit(executing, 2);
  expect_exit(threading, 3);
  expect_childless();
  target_pass();
}
