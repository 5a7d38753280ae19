// Pipes inside the process: empty, with content, full, larger than usual, non-blocking, with one end closed, ends
// shared.
#include "target.h"

static uint8_t g_content[1 << 20];

static void expect_content(int fd, size_t offset, size_t size) {
  static uint8_t found[1 << 20];
  size_t got = 0;
  while (got < size) {
    ssize_t count = read(fd, found + got, size - got);
    if (count <= 0) target_fail("pipe %d has %zu bytes, not %zu", fd, got, size);
    got += (size_t)count;
  }
  if (memcmp(found, g_content + offset, size) != 0) target_fail("pipe %d holds other bytes", fd);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  fill_words(g_content, sizeof g_content, 5);
  int empty[2], some[2], full[2], large[2], ended[2], broken[2], shared[2];
  CHECK_EQUAL(pipe(empty), 0);
  CHECK_EQUAL(pipe2(some, O_CLOEXEC), 0);
  CHECK_EQUAL(pipe2(full, O_NONBLOCK), 0);
  CHECK_EQUAL(pipe(large), 0);
  CHECK_EQUAL(pipe(ended), 0);
  CHECK_EQUAL(pipe(broken), 0);
  CHECK_EQUAL(pipe(shared), 0);
  CHECK_EQUAL(fcntl(empty[0], F_SETPIPE_SZ, 4096), 4096);
  CHECK_EQUAL(write(some[1], g_content, 100), 100);
  CHECK_EQUAL(write(some[1], g_content + 100, 5000), 5000);
  size_t filled = 0;
  for (ssize_t count; (count = write(full[1], g_content + filled, 999)) > 0;) filled += (size_t)count;
  CHECK_EQUAL(errno, EAGAIN);
  CHECK_EQUAL(fcntl(large[1], F_SETPIPE_SZ, 1 << 20), 1 << 20);
  CHECK_EQUAL(write(large[1], g_content, 700000), 700000);
  CHECK_EQUAL(write(ended[1], g_content, 10), 10);
  CHECK_EQUAL(close(ended[1]), 0);
  CHECK_EQUAL(close(broken[0]), 0);
  CHECK_EQUAL(dup2(shared[1], 700), 700);
  CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
  target_ready();
  target_wait(NULL);

  char byte;
  CHECK_EQUAL(fcntl(empty[1], F_GETPIPE_SZ), 4096);
  CHECK_EQUAL(fcntl(empty[0], F_SETFL, O_NONBLOCK), 0);
  CHECK(read(empty[0], &byte, 1) == -1 && errno == EAGAIN);
  CHECK_EQUAL(fcntl(some[0], F_GETFD), FD_CLOEXEC);
  CHECK_EQUAL(fcntl(some[0], F_GETFL), O_RDONLY);
  CHECK_EQUAL(fcntl(some[1], F_GETFL), O_WRONLY);
  expect_content(some[0], 0, 5100);
  CHECK_EQUAL(fcntl(full[1], F_GETFL), O_WRONLY | O_NONBLOCK);
  expect_content(full[0], 0, filled);
  CHECK(read(full[0], &byte, 1) == -1 && errno == EAGAIN);
  CHECK_EQUAL(fcntl(large[0], F_GETPIPE_SZ), 1 << 20);
  expect_content(large[0], 0, 700000);
  expect_content(ended[0], 0, 10);
  CHECK_EQUAL(read(ended[0], &byte, 1), 0);
  CHECK(write(broken[1], "x", 1) == -1 && errno == EPIPE);
  CHECK_EQUAL(close(shared[1]), 0);
  CHECK_EQUAL(write(700, g_content + 9, 4), 4);
  expect_content(shared[0], 9, 4);
  CHECK_EQUAL(close(700), 0);
  CHECK_EQUAL(read(shared[0], &byte, 1), 0);
  target_pass();
}
