// Writers at full speed whose memory is checkable at any instant, so that an image must be of one instant:
// - two threads rewrite their pages in turn; each verifies a page against the generation before it writes the next one,
//   and where it stands is known to its registers alone;
// - a third changes pages here and there, slowly, so that most stay as they were;
// - two take turns in raising counters that lie on different pages.
#include <sched.h>

#include "target.h"

enum { kPages = 1024, kSlowPages = 4096, kWords = PAGE_SIZE / 8 };
static volatile bool g_stop;
static struct Area {
  uint64_t seed;
  char* memory;
  uint64_t iterations;
} g_area[2];
static char* g_slow;
static uint64_t g_slow_generation[kSlowPages];
static uint64_t *g_left, *g_right;

static void write_page(uint64_t* page, uint64_t seed) {
  for (int i = 0; i < kWords; ++i) page[i] = seed + (uint64_t)i * 0x9E3779B97F4A7C15u;
}
static bool page_is(const uint64_t* page, uint64_t seed) {
  for (int i = 0; i < kWords; ++i)
    if (page[i] != seed + (uint64_t)i * 0x9E3779B97F4A7C15u) return false;
  return true;
}

static void* rewrite(void* argument) {
  struct Area* area = argument;
  uint64_t round = 1;
  for (; !g_stop; ++round)
    for (uint64_t i = 0; i < kPages; ++i) {
      uint64_t* page = (uint64_t*)(void*)(area->memory + i * PAGE_SIZE);
      if (!page_is(page, mix(area->seed + round - 1, i)))
        target_fail("area %llu, round %llu: page %llu is of another instant", (unsigned long long)area->seed,
                    (unsigned long long)round, (unsigned long long)i);
      write_page(page, mix(area->seed + round, i));
    }
  area->iterations = round - 1;
  return NULL;
}

static void* change_slowly(void* unused) {
  for (uint64_t n = 0; !g_stop; ++n) {
    uint64_t index = mix(99, n) % kSlowPages;
    uint64_t* page = (uint64_t*)(void*)(g_slow + index * PAGE_SIZE);
    if (!page_is(page, mix(g_slow_generation[index], index))) target_fail("slow page %d differs", (int)index);
    ++g_slow_generation[index];
    write_page(page, mix(g_slow_generation[index], index));
    if (n % 8 == 0) sleep_ms(1);
  }
  return unused;
}

static void* raise_left(void* unused) {
  while (!g_stop) {
    uint64_t left = __atomic_load_n(g_left, __ATOMIC_SEQ_CST), right = __atomic_load_n(g_right, __ATOMIC_SEQ_CST);
    if (left != right && left != right + 1) target_fail("counters %d and %d", (int)left, (int)right);
    if (left == right) __atomic_store_n(g_left, left + 1, __ATOMIC_SEQ_CST);
    else sched_yield();
  }
  return unused;
}
static void* raise_right(void* unused) {
  while (!g_stop) {
    uint64_t right = __atomic_load_n(g_right, __ATOMIC_SEQ_CST), left = __atomic_load_n(g_left, __ATOMIC_SEQ_CST);
    if (left != right && left != right + 1) target_fail("counters %d and %d", (int)left, (int)right);
    if (left == right + 1) __atomic_store_n(g_right, right + 1, __ATOMIC_SEQ_CST);
    else sched_yield();
  }
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_slow = map_pages(kSlowPages * PAGE_SIZE);
  for (uint64_t i = 0; i < kSlowPages; ++i) write_page((uint64_t*)(void*)(g_slow + i * PAGE_SIZE), mix(0, i));
  char* counters = map_pages(64 * PAGE_SIZE);
  g_left = (uint64_t*)(void*)counters, g_right = (uint64_t*)(void*)(counters + 63 * PAGE_SIZE);
  pthread_t thread[5];
  for (int a = 0; a < 2; ++a) {
    g_area[a].seed = 1000000u * (uint64_t)(a + 1);
    g_area[a].memory = map_pages(kPages * PAGE_SIZE);
    for (uint64_t i = 0; i < kPages; ++i)
      write_page((uint64_t*)(void*)(g_area[a].memory + i * PAGE_SIZE), mix(g_area[a].seed, i));
    thread[a] = start_thread(rewrite, &g_area[a]);
  }
  thread[2] = start_thread(change_slowly, NULL);
  thread[3] = start_thread(raise_left, NULL);
  thread[4] = start_thread(raise_right, NULL);
  target_ready();
  target_wait(NULL);
  sleep_ms(50);
  g_stop = true;
  for (int i = 0; i < 5; ++i) CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
  for (int a = 0; a < 2; ++a)
    for (uint64_t i = 0; i < kPages; ++i)
      if (!page_is((uint64_t*)(void*)(g_area[a].memory + i * PAGE_SIZE), mix(g_area[a].seed + g_area[a].iterations, i)))
        target_fail("area %d: page %d at the end", a, (int)i);
  for (uint64_t i = 0; i < kSlowPages; ++i)
    CHECK(page_is((uint64_t*)(void*)(g_slow + i * PAGE_SIZE), mix(g_slow_generation[i], i)));
  CHECK(*g_left == *g_right || *g_left == *g_right + 1);
  target_pass();
}
