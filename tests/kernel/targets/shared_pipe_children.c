// A pipe between two children, with content, that the root has closed; one that ends when a child does; one whose
// writer waits for room.
#include "target.h"

enum { kContent = 5000, kWaiting = 200000 };
static int g_between[2], g_ends[2], g_full[2];
static char g_bytes[kWaiting];

static void read_all(int fd, char* into, size_t size) {
  for (size_t got = 0; got < size;) {
    ssize_t count = read(fd, into + got, size - got);
    if (count <= 0) target_fail("pipe %d has %zu bytes, not %zu", fd, got, size);
    got += (size_t)count;
  }
}

static int writer(void* unused) {
  (void)unused;
  CHECK(close(g_between[0]) == 0 && close(g_ends[0]) == 0 && close(g_full[0]) == 0);
  CHECK_EQUAL(write(g_between[1], g_bytes, kContent), kContent);
  child_wait(1);
  CHECK_EQUAL(write(g_between[1], g_bytes + kContent, 100), 100);
  return 1;
}

static int blocked(void* unused) {
  (void)unused;
  CHECK(close(g_between[0]) == 0 && close(g_between[1]) == 0 && close(g_ends[0]) == 0 && close(g_ends[1]) == 0);
  CHECK_EQUAL(close(g_full[0]), 0);
  child_ready();
  // A stop of any kind ends a write that has done a part (signal(7), pipe(7)).
  for (size_t done = 0; done < kWaiting;) {
    ssize_t count = write(g_full[1], g_bytes + done, kWaiting - done);
    CHECK(count > 0);
    done += (size_t)count;
  }
  return 2;
}

static int reader(void* unused) {
  (void)unused;
  CHECK(close(g_between[1]) == 0 && close(g_ends[1]) == 0 && close(g_full[1]) == 0);
  child_wait(1);
  static char found[kWaiting];
  read_all(g_between[0], found, kContent + 100);
  CHECK(memcmp(found, g_bytes, kContent + 100) == 0);
  CHECK_EQUAL(read(g_between[0], found, 1), 0);
  CHECK_EQUAL(read(g_ends[0], found, 1), 0);
  read_all(g_full[0], found, kWaiting);
  CHECK(memcmp(found, g_bytes, kWaiting) == 0);
  CHECK_EQUAL(read(g_full[0], found, 1), 0);
  return 3;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  fill_words(g_bytes, sizeof g_bytes, 15);
  CHECK(pipe(g_between) == 0 && pipe(g_ends) == 0 && pipe(g_full) == 0);
  pid_t writes = start_child(writer, NULL), reads = start_child(reader, NULL), waits = start_child(blocked, NULL);
  for (int i = 0; i < 2; ++i) CHECK(close(g_between[i]) == 0 && close(g_ends[i]) == 0 && close(g_full[i]) == 0);
  sleep_ms(20);
  target_ready();
  target_wait(NULL);
  release(1);
  expect_exit(writes, 1);
  expect_exit(waits, 2);
  expect_exit(reads, 3);
  target_pass();
}
