// Memory protection keys: memory behind a key, a key between two that was given back, the rights of two threads.
// NOT CARRIED YET
#include <sys/syscall.h>

#include "target.h"

static volatile int g_ready, g_check, g_rights;
static int g_key;

static void* run_thread(void* unused) {
  CHECK_EQUAL(pkey_set(g_key, 0), 0);
  g_ready = 1;
  while (g_check == 0) sleep_ms(2);
  g_rights = 1 + pkey_get(g_key);
  while (getpid() != 0) pause();
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int first = pkey_alloc(0, 0), second = pkey_alloc(0, PKEY_DISABLE_WRITE), third = pkey_alloc(0, 0);
  if (first < 0) target_skip("no protection keys: %s", strerror(errno));
  CHECK_EQUAL(pkey_free(first), 0);
  g_key = second;
  char* memory = map_pages(4 * PAGE_SIZE);
  strcpy(memory, "behind a key");
  CHECK_EQUAL(pkey_mprotect(memory, 4 * PAGE_SIZE, PROT_READ | PROT_WRITE, second), 0);
  start_thread(run_thread, NULL);
  while (g_ready == 0) sleep_ms(1);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(strcmp(memory, "behind a key"), 0);
  CHECK_EQUAL(pkey_get(second), PKEY_DISABLE_WRITE);
  CHECK_EQUAL(pkey_get(third), 0);
  g_check = 1;
  for (int i = 0; i < 2000 && g_rights == 0; ++i) sleep_ms(1);
  CHECK_EQUAL(g_rights, 1);
  int null = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  CHECK(null >= 0);
  CHECK(read(null, memory, 1) == -1 && errno == EFAULT);  // the kernel heeds the thread's rights
  CHECK_EQUAL(pkey_set(second, 0), 0);
  CHECK_EQUAL(read(null, memory, 1), 1);
  CHECK_EQUAL(pkey_alloc(0, 0), first);
  CHECK_EQUAL(pkey_free(second), 0);
  CHECK_EQUAL(pkey_free(third), 0);
  target_pass();
}
