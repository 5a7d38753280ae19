// Socket pairs (stream): empty, with bytes both ways, full, larger buffers, one end shared by dup, used on afterwards.
#include <sys/socket.h>

#include "target.h"

static uint8_t g_content[1 << 20];

static void expect_content(int fd, size_t offset, size_t size) {
  static uint8_t found[1 << 20];
  for (size_t got = 0; got < size;) {
    ssize_t count = recv(fd, found + got, size - got, MSG_DONTWAIT);
    if (count <= 0) target_fail("socket %d has %zu bytes, not %zu", fd, got, size);
    got += (size_t)count;
    if (got == size && memcmp(found, g_content + offset, size) != 0) target_fail("socket %d holds other bytes", fd);
  }
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  fill_words(g_content, sizeof g_content, 11);
  int empty[2], some[2], full[2], shared[2];
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, empty), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, some), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, full), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, shared), 0);
  CHECK_EQUAL(send(some[0], g_content, 100, 0), 100);
  CHECK_EQUAL(send(some[0], g_content + 100, 5000, 0), 5000);
  CHECK_EQUAL(send(some[1], g_content + 7, 3, 0), 3);
  size_t filled = 0;
  for (ssize_t count; (count = send(full[1], g_content + filled, 4321, 0)) > 0;) filled += (size_t)count;
  CHECK_EQUAL(errno, EAGAIN);
  CHECK_EQUAL(dup2(shared[1], 700), 700);
  target_ready();
  target_wait(NULL);

  char byte;
  CHECK(recv(empty[0], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
  CHECK_EQUAL(fcntl(some[0], F_GETFD), FD_CLOEXEC);
  CHECK_EQUAL(fcntl(some[0], F_GETFL), O_RDWR);
  CHECK_EQUAL(fcntl(full[0], F_GETFL), O_RDWR | O_NONBLOCK);
  expect_content(some[1], 0, 5100);
  expect_content(some[0], 7, 3);
  expect_content(full[0], 0, filled);
  CHECK(recv(full[0], &byte, 1, 0) == -1 && errno == EAGAIN);
  CHECK_EQUAL(send(empty[0], "go", 2, 0), 2);
  CHECK_EQUAL(recv(empty[1], &byte, 1, 0), 1);
  CHECK_EQUAL(byte, 'g');
  CHECK_EQUAL(close(shared[1]), 0);
  CHECK_EQUAL(send(700, g_content + 9, 4, 0), 4);
  expect_content(shared[0], 9, 4);
  CHECK_EQUAL(close(700), 0);
  CHECK_EQUAL(recv(shared[0], &byte, 1, 0), 0);
  target_pass();
}
