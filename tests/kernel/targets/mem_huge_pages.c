// Huge pages of hugetlbfs: private ones, some never touched, some that may only be read; shared with a child; of a
// memfd that is sealed, and of one that is only open.
#include "../target.h"

enum { kHuge = 2 << 20 };
static char *g_private, *g_fixed, *g_shared, *g_view;
static int g_open, g_mapped;

static void step(int number) {
  fill_words(g_private + (size_t)number * PAGE_SIZE, PAGE_SIZE, (uint64_t)(100 + number));
  fill_words(g_shared + (size_t)number * PAGE_SIZE, PAGE_SIZE, (uint64_t)(200 + number));
  fill_words(g_view + (size_t)number * PAGE_SIZE, PAGE_SIZE, (uint64_t)(300 + number));
}

static int child(void* unused) {
  (void)unused;
  child_wait(1);
  CHECK(strcmp(g_shared + kHuge - 64, "from the root") == 0);
  strcpy(g_shared + kHuge - 64, "from the child");
  return 1;
}

static char* map_huge(size_t size, int flags, int fd) {
  char* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED) target_skip("no huge pages are reserved");
  return memory;
}

static void expect_huge(const void* memory) {
  char permissions[5], flags[256];
  mapping_flags(memory, permissions, flags, sizeof flags);
  CHECK(strstr(flags, "ht") != NULL);
}

/// Nobody has touched it, and it has no page yet.
static void expect_untouched(const char* memory) {
  unsigned char there = 1;
  CHECK_EQUAL(mincore((void*)memory, PAGE_SIZE, &there), 0);
  CHECK_EQUAL(there & 1, 0);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  const int own = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
  g_private = map_huge(2 * kHuge, own, -1);
  g_fixed = map_huge(kHuge, own, -1);
  g_shared = map_huge(kHuge, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1);
  g_mapped = memfd_create("huge", MFD_HUGETLB | MFD_ALLOW_SEALING);
  g_open = memfd_create("huge and open", MFD_HUGETLB);
  CHECK(g_mapped >= 0 && g_open >= 0);
  CHECK_EQUAL(ftruncate(g_mapped, kHuge), 0);
  CHECK_EQUAL(ftruncate(g_open, 2 * kHuge), 0);
  g_view = map_huge(kHuge, MAP_SHARED, g_mapped);
  CHECK_EQUAL(fcntl(g_mapped, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  fill_words(g_private, kHuge, 1);
  fill_words(g_fixed, kHuge, 2);
  CHECK_EQUAL(mprotect(g_fixed, kHuge, PROT_READ), 0);
  fill_words(g_shared, kHuge, 3);
  fill_words(g_view, kHuge, 4);
  pid_t other = start_child(child, NULL);

  target_ready();
  target_wait(step);

  strcpy(g_shared + kHuge - 64, "from the root");
  release(1);
  expect_exit(other, 1);
  CHECK(strcmp(g_shared + kHuge - 64, "from the child") == 0);
  for (int i = 1; i <= target_steps(); ++i) {
    const size_t at = (size_t)i * PAGE_SIZE;
    CHECK_EQUAL(first_wrong(g_private + at, PAGE_SIZE, (uint64_t)(100 + i)), -1);
    CHECK_EQUAL(first_wrong(g_shared + at, PAGE_SIZE, (uint64_t)(200 + i)), -1);
    CHECK_EQUAL(first_wrong(g_view + at, PAGE_SIZE, (uint64_t)(300 + i)), -1);
  }
  CHECK_EQUAL(first_wrong(g_private, PAGE_SIZE, 1), -1);
  CHECK_EQUAL(first_wrong(g_fixed, kHuge, 2), -1);
  for (const char* memory = g_private; memory < g_private + 2 * kHuge; memory += kHuge) expect_huge(memory);
  expect_huge(g_fixed), expect_huge(g_shared), expect_huge(g_view);
  expect_untouched(g_private + kHuge);
  CHECK_EQUAL(fcntl(g_mapped, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
  CHECK_EQUAL(lseek(g_open, 0, SEEK_END), 2 * kHuge);
  g_view[7] = 'x';
  char byte = 0;
  CHECK(pread(g_mapped, &byte, 1, 7) == 1 && byte == 'x');
  memset(g_private + kHuge, 7, kHuge);
  target_pass();
}
