// TCP connections with both ends inside (--tcp-established): bytes in both queues, an end that was shut down, used on
// afterwards.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "target.h"

static uint8_t g_content[300000];

static void connect_pair(int fds[2]) {
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof name;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_EQUAL(bind(listener, (struct sockaddr*)&name, sizeof name), 0);
  CHECK_EQUAL(listen(listener, 1), 0);
  CHECK_EQUAL(getsockname(listener, (struct sockaddr*)&name, &size), 0);
  fds[0] = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_EQUAL(connect(fds[0], (struct sockaddr*)&name, sizeof name), 0);
  fds[1] = accept(listener, NULL, NULL);
  CHECK(fds[1] >= 0);
  CHECK_EQUAL(close(listener), 0);
}

static void expect_content(int fd, size_t size) {
  static uint8_t found[sizeof g_content];
  for (size_t got = 0; got < size;) {
    struct pollfd poll_one = {fd, POLLIN, 0};
    if (poll(&poll_one, 1, 10000) != 1) target_fail("nothing comes after %zu bytes of %zu", got, size);
    ssize_t count = recv(fd, found + got, size - got, 0);
    if (count <= 0) target_fail("the connection ends after %zu bytes of %zu", got, size);
    got += (size_t)count;
  }
  if (memcmp(found, g_content, size) != 0) target_fail("socket %d holds other bytes", fd);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  fill_words(g_content, sizeof g_content, 13);
  int filled[2], full[2], half[2], on = 1;
  connect_pair(filled);
  connect_pair(full);
  connect_pair(half);
  CHECK_EQUAL(setsockopt(filled[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
  CHECK_EQUAL(send(filled[0], g_content, 5000, 0), 5000);
  CHECK_EQUAL(send(filled[1], g_content, 100000, 0), 100000);
  size_t sent = 0;
  for (ssize_t count;
       sent < sizeof g_content && (count = send(full[0], g_content + sent, sizeof g_content - sent, MSG_DONTWAIT)) > 0;)
    sent += (size_t)count;
  CHECK_EQUAL(send(half[0], g_content, 100, 0), 100);
  CHECK_EQUAL(shutdown(half[0], SHUT_WR), 0);
  target_ready();
  target_wait(NULL);
  expect_content(filled[1], 5000);
  expect_content(filled[0], 100000);
  expect_content(full[1], sent);
  expect_content(half[1], 100);
  char byte;
  CHECK_EQUAL(recv(half[1], &byte, 1, 0), 0);
  CHECK_EQUAL(send(half[1], g_content, 200, 0), 200);
  expect_content(half[0], 200);
  socklen_t size = sizeof on;
  CHECK_EQUAL(getsockopt(filled[0], IPPROTO_TCP, TCP_NODELAY, &on, &size), 0);
  CHECK_EQUAL(on, 1);
  for (int i = 0; i < 20; ++i) {
    CHECK_EQUAL(send(filled[i % 2], g_content, 20000, 0), 20000);
    expect_content(filled[1 - i % 2], 20000);
  }
  target_pass();
}
