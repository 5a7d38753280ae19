// The kernel clears and wakes a word when a thread ends: pthread_join depends on it.
#include <sys/prctl.h>

#include "target.h"

static volatile bool g_end;
static void* g_address[2];
static bool g_known = true;

static void* work(void* argument) {
  void** address = argument;
  if (prctl(PR_GET_TID_ADDRESS, address) != 0) g_known = false;
  while (!g_end) sleep_ms(2);
  void* now = NULL;
  if (g_known) CHECK(prctl(PR_GET_TID_ADDRESS, &now) == 0 && now == *address && now != NULL);
  return (void*)0x1234;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (prctl(PR_GET_TID_ADDRESS, &g_address[0]) != 0) g_known = false;
  pthread_t thread = start_thread(work, &g_address[1]);
  sleep_ms(10);
  target_ready();
  target_wait(NULL);
  void* now = NULL;
  if (g_known) CHECK(prctl(PR_GET_TID_ADDRESS, &now) == 0 && now == g_address[0]);
  CHECK_EQUAL(pthread_tryjoin_np(thread, NULL), EBUSY);
  g_end = true;
  void* value = NULL;
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 5;
  CHECK_EQUAL(pthread_timedjoin_np(thread, &value, &limit), 0);
  CHECK(value == (void*)0x1234);
  target_pass();
}
