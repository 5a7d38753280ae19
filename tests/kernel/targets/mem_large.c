// More memory than comes in at once. With the argument "lossy" pages may be gone (SIGBUS): those are counted in the
// file "lost"; what can be read must be right, and the kernel must not find other bytes either.
#include <setjmp.h>

#include "target.h"

enum { kMebibytes = 192 };
static const size_t kPages = (size_t)kMebibytes * 256;
static sigjmp_buf g_lost;

static void on_bus(int number) {
  (void)number;
  siglongjmp(g_lost, 1);
}

static uint64_t word_of(size_t page) { return page % 8 == 7 ? 0 : mix(7, page); }

static volatile uint64_t* g_word;
static int g_ends[2];

// False: the kernel was refused the page.
static bool check_page(size_t page, bool through_kernel) {
  const volatile uint64_t* word = &g_word[page * 512];
  uint64_t copy = word_of(page);
  if (through_kernel) {
    ssize_t got = write(g_ends[1], (const void*)word, sizeof copy);
    if (got < 0 && errno == EFAULT) return false;
    CHECK_EQUAL(got, sizeof copy);
    CHECK_EQUAL(read(g_ends[0], &copy, sizeof copy), sizeof copy);
  }
  CHECK_EQUAL(copy, word_of(page));
  CHECK_EQUAL(word[0], word_of(page));
  CHECK_EQUAL(word[300], word_of(page));
  return true;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  const bool lossy = argc > 2 && strcmp(argv[2], "lossy") == 0;
  // What it needs itself is locked into memory, and so there from the start.
  if (lossy) CHECK_EQUAL(mlockall(MCL_CURRENT), 0);
  g_word = map_pages(kPages * PAGE_SIZE);
  CHECK_EQUAL(pipe(g_ends), 0);
  for (size_t page = 0; page < kPages; ++page)
    if (word_of(page) != 0) g_word[page * 512] = g_word[page * 512 + 300] = word_of(page);
  target_ready();
  target_wait(NULL);
  struct sigaction bus = {.sa_handler = on_bus};
  if (lossy) CHECK_EQUAL(sigaction(SIGBUS, &bus, NULL), 0);
  static volatile size_t at, lost;  // not in registers, which the handler's jump takes back
  for (at = 0; at < kPages; ++at) {
    if (sigsetjmp(g_lost, 1) != 0) {
      ++lost;
      continue;
    }
    if (check_page(at * 7919 % kPages, at % 64 == 0)) continue;
    CHECK(lossy);
    ++lost;
  }
  char text[64];
  int fd = open("lost", O_CREAT | O_TRUNC | O_WRONLY, 0644);
  CHECK(fd >= 0 && write(fd, text, (size_t)sprintf(text, "%zu\n", lost)) > 0);
  target_pass();
}
