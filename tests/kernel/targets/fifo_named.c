// Fifos with a name: content, a reader and a writer in different processes, one opened for both, one end gone.
#include <sys/stat.h>

#include "target.h"

enum { kContent = 5000 };
static char g_bytes[kContent + 100];

static int g_holds;  // so that an open of either end waits for nobody

static int reader(void* unused) {
  (void)unused;
  int fd = open("between", O_RDONLY);
  CHECK(fd >= 0 && close(g_holds) == 0);
  child_wait(1);
  static char found[kContent + 100];
  for (size_t got = 0; got < sizeof found;) {
    ssize_t count = read(fd, found + got, sizeof found - got);
    CHECK(count > 0);
    got += (size_t)count;
  }
  CHECK(memcmp(found, g_bytes, sizeof found) == 0);
  CHECK_EQUAL(read(fd, found, 1), 0);
  return 1;
}

static int writer(void* unused) {
  (void)unused;
  int fd = open("between", O_WRONLY);
  CHECK_EQUAL(write(fd, g_bytes, kContent), kContent);
  CHECK_EQUAL(close(g_holds), 0);
  child_wait(1);
  CHECK_EQUAL(write(fd, g_bytes + kContent, 100), 100);
  return 2;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  fill_words(g_bytes, sizeof g_bytes, 18);
  CHECK(mkfifo("between", 0600) == 0 && mkfifo("both", 0600) == 0 && mkfifo("ended", 0600) == 0);
  g_holds = open("between", O_RDWR);
  pid_t reads = start_child(reader, NULL), writes = start_child(writer, NULL);
  CHECK_EQUAL(close(g_holds), 0);
  int both = open("both", O_RDWR | O_NONBLOCK), ended = open("ended", O_RDONLY | O_NONBLOCK);
  int gone = open("ended", O_WRONLY);
  CHECK(both >= 0 && ended >= 0 && gone >= 0);
  CHECK_EQUAL(fcntl(both, F_SETPIPE_SZ, 131072), 131072);
  CHECK_EQUAL(write(both, "waiting", 7), 7);
  CHECK_EQUAL(write(gone, "last", 4), 4);
  CHECK_EQUAL(close(gone), 0);
  target_ready();
  target_wait(NULL);
  char text[16] = "";
  CHECK_EQUAL(fcntl(both, F_GETPIPE_SZ), 131072);
  CHECK_EQUAL(read(both, text, sizeof text), 7);
  CHECK(memcmp(text, "waiting", 7) == 0);
  CHECK(read(both, text, 1) == -1 && errno == EAGAIN);
  CHECK_EQUAL(read(ended, text, sizeof text), 4);
  CHECK(memcmp(text, "last", 4) == 0);
  CHECK_EQUAL(read(ended, text, 1), 0);
  struct stat open_file, named;
  CHECK(fstat(both, &open_file) == 0 && stat("both", &named) == 0);
  CHECK_EQUAL(open_file.st_ino, named.st_ino);
  release(1);
  expect_exit(writes, 2);
  expect_exit(reads, 1);
  target_pass();
}
