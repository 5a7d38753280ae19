// Everything that could slip past the tracking of writes, between one image and the next: each step changes memory in
// every way but a plain store, and a plain model in other pages says what must be there.
#include <sys/uio.h>

#include "target.h"

enum { kPages = 128, kBytes = kPages * 4096 };
static char *g_area[12], *g_model[12];
static int g_pipe[2], g_file;
static char *g_moved, *g_moved_model;

static void* write_elsewhere(void* argument) {
  memset((char*)argument + 40 * PAGE_SIZE, 0x5a, 3 * PAGE_SIZE);
  return NULL;
}

static void fresh(char* at, size_t bytes) {
  CHECK_EQUAL(munmap(at, bytes), 0);
  CHECK(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

static void step(int number) {
  size_t first = (size_t)number * 5 * PAGE_SIZE, bytes = 4 * PAGE_SIZE;
  uint64_t seed = (uint64_t)number * 1000;
  // 0: unmapped and mapped again in place, partly written
  fresh(g_area[0] + first, bytes);
  memset(g_model[0] + first, 0, bytes);
  fill_words(g_area[0] + first, PAGE_SIZE, seed), fill_words(g_model[0] + first, PAGE_SIZE, seed);
  // 1: MADV_DONTNEED: zero from now on
  CHECK_EQUAL(madvise(g_area[1] + first, bytes, MADV_DONTNEED), 0);
  memset(g_model[1] + first, 0, bytes);
  // 2: pages moved by mremap onto others
  char* spare = map_pages(bytes);
  fill_words(spare, bytes, seed + 2), fill_words(g_model[2] + first, bytes, seed + 2);
  CHECK(mremap(spare, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, g_area[2] + first) == g_area[2] + first);
  // 3: protection taken and given back around a write
  CHECK_EQUAL(mprotect(g_area[3] + first, bytes, PROT_READ), 0);
  CHECK_EQUAL(mprotect(g_area[3] + first, bytes, PROT_READ | PROT_WRITE), 0);
  fill_words(g_area[3] + first, bytes, seed + 3), fill_words(g_model[3] + first, bytes, seed + 3);
  // 4: written by the kernel: read from a file and from a pipe, and readv
  CHECK_EQUAL(pread(g_file, g_area[4] + first, bytes, 0), bytes);
  CHECK_EQUAL(pread(g_file, g_model[4] + first, bytes, 0), bytes);
  CHECK_EQUAL(write(g_pipe[1], "through the pipe", 16), 16);
  struct iovec two[2] = {{g_area[4] + first + PAGE_SIZE - 4, 8}, {g_area[4] + first + 3 * PAGE_SIZE, 8}};
  CHECK_EQUAL(readv(g_pipe[0], two, 2), 16);
  memcpy(g_model[4] + first + PAGE_SIZE - 4, "through ", 8);
  memcpy(g_model[4] + first + 3 * PAGE_SIZE, "the pipe", 8);
  // 5: written by a thread that did not exist before
  CHECK_EQUAL(pthread_join(start_thread(write_elsewhere, g_area[5] + first), NULL), 0);
  write_elsewhere(g_model[5] + first);
  // 6: one byte, and the same byte again
  g_area[6][first] = (char)(0x80 + number), g_model[6][first] = (char)(0x80 + number);
  // 7: zeroed by stores
  memset(g_area[7] + first, 0, bytes), memset(g_model[7] + first, 0, bytes);
  // 8: the first write to pages that were never there (left out of the set-up)
  fill_words(g_area[8] + first, PAGE_SIZE, seed + 8), fill_words(g_model[8] + first, PAGE_SIZE, seed + 8);
  // 9: a private file mapping put over anonymous pages
  CHECK(mmap(g_area[9] + first, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, g_file, 0) ==
        g_area[9] + first);
  CHECK_EQUAL(pread(g_file, g_model[9] + first, bytes, 0), bytes);
  g_area[9][first + 5] ^= 1, g_model[9][first + 5] ^= 1;
  // 10: MADV_FREE and a write that cancels it
  CHECK_EQUAL(madvise(g_area[10] + first, bytes, MADV_FREE), 0);
  fill_words(g_area[10] + first, bytes, seed + 10), fill_words(g_model[10] + first, bytes, seed + 10);
  // 11: only read: must not count, must not change
  for (size_t i = 0; i < kBytes; i += PAGE_SIZE) (void)*(volatile char*)(g_area[11] + i);
  // A mapping that moves and grows at every step.
  size_t old = (size_t)(number + 3) * PAGE_SIZE;
  g_moved = mremap(g_moved, old, old + PAGE_SIZE, MREMAP_MAYMOVE);
  CHECK(g_moved != MAP_FAILED);
  fill_words(g_moved + old, PAGE_SIZE, seed + 50), fill_words(g_moved_model + old, PAGE_SIZE, seed + 50);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(pipe2(g_pipe, O_CLOEXEC), 0);
  char content[4 * 4096];
  fill_words(content, sizeof content, 4);
  g_file = open("content", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  CHECK_EQUAL(write(g_file, content, sizeof content), sizeof content);
  for (int i = 0; i < 12; ++i) {
    g_area[i] = map_pages(kBytes + 2 * PAGE_SIZE);
    g_area[i] += PAGE_SIZE;
    g_model[i] = map_pages(kBytes);
    if (i == 8) continue;
    fill_words(g_area[i], kBytes, (uint64_t)i);
    fill_words(g_model[i], kBytes, (uint64_t)i);
  }
  g_moved = map_pages(4 * PAGE_SIZE);
  g_moved_model = map_pages(64 * PAGE_SIZE);
  fill_words(g_moved, 4 * PAGE_SIZE, 60), fill_words(g_moved_model, 4 * PAGE_SIZE, 60);
  target_ready();
  target_wait(step);
  for (int i = 0; i < 12; ++i)
    for (size_t page = 0; page < kPages; ++page)
      if (memcmp(g_area[i] + page * PAGE_SIZE, g_model[i] + page * PAGE_SIZE, PAGE_SIZE) != 0)
        target_fail("case %d: page %zu differs after %d steps", i, page, target_steps());
  if (memcmp(g_moved, g_moved_model, (size_t)(target_steps() + 4) * PAGE_SIZE) != 0)
    target_fail("the moved mapping differs");
  target_pass();
}
