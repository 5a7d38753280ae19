// Private file mappings: pages of the file, pages that differ from it, one zeroed, and the tail of the last page.
#include <sys/stat.h>

#include "target.h"

enum { kPages = 64 };
static char *g_writable, *g_offset;

static void step(int number) { memset(g_writable + (size_t)(10 + number) * PAGE_SIZE, 'A' + number, PAGE_SIZE); }

int main(int argc, char** argv) {
  target_init(argc, argv);
  size_t bytes = kPages * PAGE_SIZE - 1000;
  char* content = malloc(kPages * PAGE_SIZE);
  fill_words(content, kPages * PAGE_SIZE, 21);
  int fd = open("mapped", O_CREAT | O_RDWR, 0600);
  CHECK_EQUAL(write(fd, content, bytes), bytes);
  g_writable = mmap(NULL, kPages * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  g_offset = mmap(NULL, 8 * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 16 * PAGE_SIZE);
  char* plain = mmap(NULL, kPages * PAGE_SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
  CHECK(g_writable != MAP_FAILED && g_offset != MAP_FAILED && plain != MAP_FAILED);
  CHECK_EQUAL(close(fd), 0);
  memset(g_writable + 3 * PAGE_SIZE, 'm', PAGE_SIZE);
  g_writable[5 * PAGE_SIZE + 17] ^= 1;
  memset(g_writable + 7 * PAGE_SIZE, 0, PAGE_SIZE);
  g_writable[kPages * PAGE_SIZE - 1] = 't';  // behind the end of the file, in its last page
  g_offset[2 * PAGE_SIZE] ^= 1;
  target_ready();
  target_wait(step);
  memset(content + bytes, 0, 1000);
  CHECK(memcmp(plain, content, kPages * PAGE_SIZE) == 0);
  content[18 * PAGE_SIZE] ^= 1;
  CHECK(memcmp(g_offset, content + 16 * PAGE_SIZE, 8 * PAGE_SIZE) == 0);
  content[18 * PAGE_SIZE] ^= 1;
  memset(content + 3 * PAGE_SIZE, 'm', PAGE_SIZE);
  content[5 * PAGE_SIZE + 17] ^= 1;
  memset(content + 7 * PAGE_SIZE, 0, PAGE_SIZE);
  content[kPages * PAGE_SIZE - 1] = 't';
  for (int i = 1; i <= target_steps(); ++i) memset(content + (size_t)(10 + i) * PAGE_SIZE, 'A' + i, PAGE_SIZE);
  for (size_t i = 0; i < kPages; ++i)
    if (memcmp(g_writable + i * PAGE_SIZE, content + i * PAGE_SIZE, PAGE_SIZE) != 0) target_fail("page %zu differs", i);
  char permissions[5], flags[256];
  mapping_flags(plain, permissions, flags, sizeof flags);
  CHECK(strcmp(permissions, "r--p") == 0);
  struct stat about;
  CHECK(stat("mapped", &about) == 0 && about.st_size == (off_t)bytes);  // nothing reached the file
  fd = open("mapped", O_RDONLY);
  CHECK(pread(fd, content, 8, 3 * PAGE_SIZE) == 8 && memcmp(content, "mmmmmmmm", 8) != 0);
  target_pass();
}
