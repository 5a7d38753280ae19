// Personality bits, of a thread that has the process's and of one that has its own; no_new_privs.
#include <sys/personality.h>
#include <sys/prctl.h>

#include "target.h"

enum { kAsk = -1, kOfProcess = ADDR_NO_RANDOMIZE | SHORT_INODE, kOwn = ADDR_COMPAT_LAYOUT };
static volatile int g_ready, g_goes_on;

static void* work(void* wanted) {
  const int bits = *(const int*)wanted;
  if (bits != kOfProcess) CHECK(personality((unsigned long)bits) >= 0);
  __atomic_add_fetch(&g_ready, 1, __ATOMIC_SEQ_CST);
  while (!g_goes_on) sleep_ms(2);
  CHECK_EQUAL(personality(kAsk), bits);
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  static const int kBits[] = {kOfProcess, kOwn, 0};
  pthread_t threads[3];
  CHECK(personality(kOfProcess) >= 0);
  for (int i = 0; i < 3; ++i) threads[i] = start_thread(work, (void*)&kBits[i]);
  while (g_ready < 3) sleep_ms(1);
  CHECK_EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(personality(kAsk), kOfProcess);
  CHECK_EQUAL(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
  g_goes_on = 1;
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
  target_pass();
}
