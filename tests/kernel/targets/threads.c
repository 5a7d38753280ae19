// Sixteen threads, each with its own number, thread-local values, signal mask, name, alternate stack and nice value.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "target.h"

enum { kThreads = 16 };

static __thread uint64_t t_word;
static __thread char t_text[32] = "initial";
static struct Own {
  int index;
  pid_t tid;
  uintptr_t self, word_address;
  void* alternate;
} g_own[kThreads];
static pthread_barrier_t g_barrier;
static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_go = PTHREAD_COND_INITIALIZER;
static bool g_checking;
static int g_checked;

static void own_name(const struct Own* own, char* name) { sprintf(name, "worker/%d (x)", own->index); }

static void* work(void* argument) {
  struct Own* own = argument;
  own->tid = get_tid();
  own->self = (uintptr_t)pthread_self();
  own->word_address = (uintptr_t)&t_word;
  t_word = mix(own->index, 77);
  sprintf(t_text, "text of %d", own->index);
  char name[32];
  own_name(own, name);
  CHECK_EQUAL(prctl(PR_SET_NAME, name), 0);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGRTMIN + own->index);
  if (own->index % 2 == 1) sigaddset(&mask, SIGUSR1);
  CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
  stack_t alternate = {.ss_sp = own->alternate, .ss_size = 16384};
  if (own->index % 3 != 0) CHECK_EQUAL(sigaltstack(&alternate, NULL), 0);
  CHECK_EQUAL(setpriority(PRIO_PROCESS, (id_t)own->tid, own->index % 4), 0);
  pthread_barrier_wait(&g_barrier);

  pthread_mutex_lock(&g_mutex);
  while (!g_checking) pthread_cond_wait(&g_go, &g_mutex);
  ++g_checked;
  pthread_mutex_unlock(&g_mutex);

  char found[32], wanted[32];
  CHECK_EQUAL(get_tid(), own->tid);
  CHECK((uintptr_t)pthread_self() == own->self && (uintptr_t)&t_word == own->word_address);
  CHECK(t_word == mix(own->index, 77));
  sprintf(wanted, "text of %d", own->index);
  CHECK(strcmp(t_text, wanted) == 0);
  CHECK_EQUAL(prctl(PR_GET_NAME, found), 0);
  CHECK(strncmp(found, name, 15) == 0);
  sigset_t now;
  CHECK_EQUAL(pthread_sigmask(SIG_SETMASK, NULL, &now), 0);
  CHECK(memcmp(&now, &mask, 8) == 0);
  CHECK_EQUAL(sigaltstack(NULL, &alternate), 0);
  if (own->index % 3 != 0) {
    CHECK(alternate.ss_sp == own->alternate);
    CHECK_EQUAL(alternate.ss_size, 16384);
    CHECK_EQUAL(alternate.ss_flags, 0);
  } else {
    CHECK_EQUAL(alternate.ss_flags, SS_DISABLE);
  }
  CHECK_EQUAL(getpriority(PRIO_PROCESS, (id_t)own->tid), own->index % 4);
  pthread_barrier_wait(&g_barrier);
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  pthread_barrier_init(&g_barrier, NULL, kThreads + 1);
  pthread_t thread[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    g_own[i].index = i;
    g_own[i].alternate = map_pages(16384);
    thread[i] = start_thread(work, &g_own[i]);
  }
  pthread_barrier_wait(&g_barrier);
  target_ready();
  target_wait(NULL);
  pthread_mutex_lock(&g_mutex);
  g_checking = true;
  pthread_cond_broadcast(&g_go);
  pthread_mutex_unlock(&g_mutex);
  pthread_barrier_wait(&g_barrier);
  for (int i = 0; i < kThreads; ++i) CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
  CHECK_EQUAL(g_checked, kThreads);
  CHECK_EQUAL(getpid(), get_tid());
  target_pass();
}
