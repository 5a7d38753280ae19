// Two processes with one address space (CLONE_VM): what one writes or maps the other has; their handlers are two.
#include <linux/kcmp.h>
#include <sched.h>

#include "target.h"

static volatile uint64_t g_word;
static char* volatile g_mapped;

static int sharer(void* unused) {
  (void)unused;
  child_wait(1);
  g_word = mix(g_word, 1);
  g_mapped = map_pages(PAGE_SIZE);
  strcpy(g_mapped, "by the child");
  return 1;
}

static void step(int number) { g_word = mix(5, (uint64_t)number); }

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_word = mix(5, 0);
  pid_t together = start_clone(CLONE_VM | SIGCHLD, sharer, NULL);
  target_ready();
  target_wait(step);
  CHECK_EQUAL(syscall(SYS_kcmp, getpid(), together, KCMP_VM, 0, 0), 0);
  CHECK(syscall(SYS_kcmp, getpid(), together, KCMP_SIGHAND, 0, 0) > 0);
  CHECK(syscall(SYS_kcmp, getpid(), together, KCMP_FILES, 0, 0) > 0);
  release(1);
  expect_exit(together, 1);
  CHECK(g_word == mix(mix(5, (uint64_t)target_steps()), 1));
  CHECK(strcmp(g_mapped, "by the child") == 0);
  target_pass();
}
