// Memory that is changed in every way by several threads as soon as the process runs, whether all of it is in or not (a
// lazy restore): pages are read, written, dropped, unmapped, moved, protected, locked and inherited by children, by the
// program and by the kernel for it. A model says what each page must hold.
#include <spawn.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "target.h"

enum { kThreads = 6, kSlots = 3072, kRounds = 220, kMost = 48 };

struct Region {
  char* at;                 // kSlots pages
  uint64_t model[kSlots];   // the word that a page holds at its start, middle and end; 0: a zero page
  uint64_t random;
  int number, pipe[2];
};
static struct Region* g_region[kThreads];
// Whoever leaves a hole in the address space for a moment holds off those who would be given it.
static pthread_mutex_t g_holes = PTHREAD_MUTEX_INITIALIZER;
extern char** environ;

static uint64_t next(struct Region* r) {
  r->random ^= r->random << 13, r->random ^= r->random >> 7, r->random ^= r->random << 17;
  return r->random;
}

static volatile uint64_t* page_of(struct Region* r, size_t slot) {
  return (volatile uint64_t*)(void*)(r->at + slot * PAGE_SIZE);
}

static bool holds(struct Region* r, size_t slot) {
  volatile uint64_t* word = page_of(r, slot);
  return word[0] == r->model[slot] && word[255] == r->model[slot] && word[511] == r->model[slot];
}

static void expect(struct Region* r, size_t slot, const char* after) {
  if (holds(r, slot)) return;
  volatile uint64_t* word = page_of(r, slot);
  target_fail("region %d, page %zu (%p), %s: %llx %llx %llx, not %llx", r->number, slot, (void*)word, after,
              (unsigned long long)word[0], (unsigned long long)word[255], (unsigned long long)word[511],
              (unsigned long long)r->model[slot]);
}

static void put(struct Region* r, size_t slot, uint64_t value) {
  volatile uint64_t* word = page_of(r, slot);
  word[0] = word[255] = word[511] = r->model[slot] = value;
}

static void forget(struct Region* r, size_t slot, size_t count) {
  memset(&r->model[slot], 0, count * sizeof r->model[0]);
}

static void map_again(struct Region* r, size_t slot, size_t count) {
  void* at = r->at + slot * PAGE_SIZE;
  CHECK(mmap(at, count * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

// The pages change places with those of another range, by way of a third.
static void swap_ranges(struct Region* r, size_t one, size_t other, size_t count) {
  if (one < other ? other - one < count : one - other < count) return;
  const size_t bytes = count * PAGE_SIZE;
  char *first = r->at + one * PAGE_SIZE, *second = r->at + other * PAGE_SIZE;
  char* spare = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(spare != MAP_FAILED);
  // A range may lie in several mappings by now, which mremap does not move at once.
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * PAGE_SIZE;
    CHECK(mremap(first + at, PAGE_SIZE, PAGE_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, spare + at) == spare + at);
    CHECK(mremap(second + at, PAGE_SIZE, PAGE_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, first + at) == first + at);
    CHECK(mremap(spare + at, PAGE_SIZE, PAGE_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, second + at) == second + at);
    uint64_t kept = r->model[one + i];
    r->model[one + i] = r->model[other + i], r->model[other + i] = kept;
  }
}

// The child sees what was there at the fork, and its changes are its own.
static void inherit(struct Region* r, size_t slot, size_t count) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (madvise(r->at + slot * PAGE_SIZE, count * PAGE_SIZE, MADV_DONTNEED) != 0) _exit(2);
    forget(r, slot, count);
    for (size_t i = 0; i < kSlots; ++i)
      if (!holds(r, i)) _exit(3);
    _exit(0);
  }
  for (size_t i = 0; i < count; ++i) put(r, slot + i, mix(r->random, i));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) CHECK_EQUAL(errno, EINTR);
  if (status != 0)
    target_fail("region %d: a child found something else than what was there (wait status %#x)", r->number, status);
}

// The kernel reads and writes for the program.
static void through_kernel(struct Region* r, size_t from, size_t to) {
  CHECK_EQUAL(write(r->pipe[1], r->at + from * PAGE_SIZE, PAGE_SIZE), PAGE_SIZE);
  CHECK_EQUAL(read(r->pipe[0], r->at + to * PAGE_SIZE, PAGE_SIZE), PAGE_SIZE);
  r->model[to] = r->model[from];
  expect(r, to, "copied by the kernel");
}

static void spawn(void) {
  char* arguments[] = {"true", NULL};
  pid_t child = 0;
  CHECK_EQUAL(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ), 0);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) CHECK_EQUAL(errno, EINTR);
}

static void change(struct Region* r) {
  const size_t count = 1 + next(r) % kMost, slot = next(r) % (kSlots - kMost), other = next(r) % (kSlots - kMost);
  char* at = r->at + slot * PAGE_SIZE;
  const size_t bytes = count * PAGE_SIZE;
  switch (next(r) % 12) {
    case 0:
      CHECK_EQUAL(madvise(at, bytes, MADV_DONTNEED), 0);
      forget(r, slot, count);
      break;
    case 1:
      pthread_mutex_lock(&g_holes);
      CHECK_EQUAL(munmap(at, bytes), 0);
      map_again(r, slot, count);
      pthread_mutex_unlock(&g_holes);
      forget(r, slot, count);
      break;
    case 2:
      map_again(r, slot, count);
      forget(r, slot, count);
      break;
    case 3:
      pthread_mutex_lock(&g_holes);
      swap_ranges(r, slot, other, count % 8 + 1);
      pthread_mutex_unlock(&g_holes);
      break;
    case 4:
      CHECK_EQUAL(mprotect(at, bytes, next(r) % 2 ? PROT_READ : PROT_NONE), 0);
      CHECK_EQUAL(mprotect(at, bytes, PROT_READ | PROT_WRITE), 0);
      break;
    case 5:
      if (next(r) % 4 == 0) inherit(r, slot, count);
      break;
    case 6: through_kernel(r, slot, other); break;
    case 7:
      CHECK(mlock(at, PAGE_SIZE) == 0 || errno == ENOMEM || errno == EPERM);
      CHECK_EQUAL(munlock(at, PAGE_SIZE), 0);
      break;
    case 8:
      if (next(r) % 16 != 0) break;
      pthread_mutex_lock(&g_holes);
      spawn();
      pthread_mutex_unlock(&g_holes);
      break;
    default:
      for (size_t i = 0; i < count; ++i) put(r, slot + i, mix(r->random, i));
  }
  for (size_t i = 0; i < count; ++i) expect(r, slot + i, "after a change");
  expect(r, next(r) % kSlots, "somewhere");
}

static void* storm(void* argument) {
  struct Region* r = argument;
  for (int round = 0; round < kRounds; ++round) change(r);
  for (size_t slot = 0; slot < kSlots; ++slot) expect(r, slot, "at the end");
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  for (int i = 0; i < kThreads; ++i) {
    struct Region* r = g_region[i] = map_pages(sizeof *r);
    r->at = map_pages(kSlots * PAGE_SIZE);
    r->number = i, r->random = mix((uint64_t)getpid(), (uint64_t)i) | 1;
    CHECK_EQUAL(pipe(r->pipe), 0);
    for (size_t slot = 0; slot < kSlots; ++slot)
      if (slot % 16 < 14) put(r, slot, mix((uint64_t)i + 1, slot));
  }
  target_ready();
  target_wait(NULL);
  pthread_t thread[kThreads];
  for (int i = 0; i < kThreads; ++i) thread[i] = start_thread(storm, g_region[i]);
  for (int i = 0; i < kThreads; ++i) CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
  target_pass();
}
