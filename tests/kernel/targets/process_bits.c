// prctl values and small files of /proc: parent-death signal, timer slack, dumpable, child subreaper, THP off but where
// it is asked for, merged memory, OOM score, coredump filter, chosen timer ids, slots for futexes; a thread's own ones,
// in a thread that has others: what broken memory does to it, how much of a processor it is taken to use.
#include <linux/securebits.h>
#include <sys/prctl.h>

#include "target.h"

enum { kExceptAdvised = 2, kSetMemoryMerge = 67, kGetMemoryMerge = 68 };
enum { kTimerIds = 77, kTimerIdsOn = 1, kTimerIdsGet = 2, kFutexHash = 78, kSlotsSet = 1, kSlotsGet = 2 };
enum { kSlots = 4096, kFlusherSet = 57, kFlusherGet = 58, kKeepAndClamp = 0x08 | 0x10 | 0x20 | 0x40 };
static bool g_timer_ids, g_slots, g_flusher, g_clamps;
static volatile int g_died, g_phase;
static bool g_has_bits, g_worker_alone;  // argv[2] "worker": only another thread than the first hears of the parent
static int g_thp, g_merge;
static void parent_died(int number) {
  (void)number;
  ++g_died;
}

static void write_proc(const char* path, const char* text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) target_fail("%s: %s", path, strerror(errno));
  close(fd);
}
static long read_proc(const char* path, int base) {
  char text[32] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) target_fail("%s: %s", path, strerror(errno));
  close(fd);
  return strtol(text, NULL, base);
}

/// struct sched_attr of Linux 5.3.
struct Attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
  uint32_t util_min, util_max;
};

/// Only where the kernel has what it takes: each is checked if it could be set.
static void set_more(void) {
  struct Attributes attributes = {.size = sizeof attributes, .flags = kKeepAndClamp, .util_min = 100, .util_max = 700};
  CHECK_EQUAL(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0), 0);
  g_flusher = prctl(kFlusherSet, 1, 0, 0, 0) == 0;
  g_clamps = syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}
static void check_more(void) {
  struct Attributes attributes = {.size = sizeof attributes};
  CHECK_EQUAL(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0), PR_MCE_KILL_EARLY);
  if (g_flusher) CHECK_EQUAL(prctl(kFlusherGet, 0, 0, 0, 0), 1);
  CHECK_EQUAL(syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0), 0);
  if (g_clamps) CHECK_EQUAL(attributes.util_min, 100);
  if (g_clamps) CHECK_EQUAL(attributes.util_max, 700);
}

static void* work(void* unused) {
  int signal_number = 0;
  CHECK_EQUAL(prctl(PR_SET_TIMERSLACK, 123456), 0);
  const int wanted = g_worker_alone ? SIGTERM : SIGURG;
  CHECK_EQUAL(prctl(PR_SET_PDEATHSIG, wanted), 0);
  g_has_bits = prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) == 0;
  set_more();
  g_phase = 1;
  while (g_phase != 2) sleep_ms(2);
  check_more();
  CHECK_EQUAL(prctl(PR_GET_TIMERSLACK), 123456);
  CHECK_EQUAL(prctl(PR_GET_PDEATHSIG, &signal_number), 0);
  CHECK(signal_number == wanted || (g_worker_alone && signal_number == 0));  // as below
  if (g_has_bits) CHECK_EQUAL(prctl(PR_GET_SECUREBITS), SECBIT_NO_SETUID_FIXUP);
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK(signal(SIGUSR2, parent_died) != SIG_ERR);
  g_worker_alone = argc > 2 && strcmp(argv[2], "worker") == 0;
  if (!g_worker_alone) CHECK_EQUAL(prctl(PR_SET_PDEATHSIG, SIGUSR2), 0);
  CHECK_EQUAL(prctl(PR_SET_TIMERSLACK, 77000), 0);
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  if (prctl(PR_SET_THP_DISABLE, 1, kExceptAdvised, 0, 0) != 0) CHECK_EQUAL(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  g_thp = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
  g_merge = prctl(kSetMemoryMerge, 1, 0, 0, 0) == 0;
  write_proc("/proc/self/oom_score_adj", "321");
  write_proc("/proc/self/coredump_filter", "0x15");
  CHECK_EQUAL(prctl(PR_SET_DUMPABLE, 0), 0);
  pthread_t thread = start_thread(work, NULL);
  while (g_phase != 1) sleep_ms(1);
  g_timer_ids = prctl(kTimerIds, kTimerIdsOn, 0, 0, 0) == 0;
  g_slots = prctl(kFutexHash, kSlotsSet, kSlots, 0, 0) == 0;
  target_ready();
  target_wait(NULL);
  int value = 0;
  CHECK_EQUAL(prctl(PR_GET_PDEATHSIG, &value), 0);
  CHECK(value == SIGUSR2 || value == 0);  // a detached restore ends at once and leaves no parent to wait for
  CHECK_EQUAL(g_died, 0);
  CHECK_EQUAL(prctl(PR_GET_TIMERSLACK), 77000);
  CHECK_EQUAL(prctl(PR_GET_CHILD_SUBREAPER, &value), 0);
  CHECK_EQUAL(value, 1);
  CHECK_EQUAL(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), g_thp);
  if (g_merge != 0) CHECK_EQUAL(prctl(kGetMemoryMerge, 0, 0, 0, 0), 1);
  CHECK_EQUAL(prctl(PR_GET_SECUREBITS), 0);
  CHECK_EQUAL(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0), PR_MCE_KILL_DEFAULT);
  if (g_timer_ids) CHECK_EQUAL(prctl(kTimerIds, kTimerIdsGet, 0, 0, 0), 1);
  if (g_slots) CHECK_EQUAL(prctl(kFutexHash, kSlotsGet, 0, 0, 0), kSlots);
  CHECK_EQUAL(prctl(PR_GET_DUMPABLE), 0);
  CHECK_EQUAL(read_proc("/proc/self/oom_score_adj", 10), 321);
  CHECK_EQUAL(read_proc("/proc/self/coredump_filter", 16), 0x15);
  g_phase = 2;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  target_pass();
}
