// Sockets whose next call is to fail: UDP that was refused, TCP that was reset, before and after the end of what its
// peer sends. Each error is told once, by the first call after the checkpoint, and neither sooner nor again.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "target.h"

static struct sockaddr_in6 loopback(int family) {
  struct sockaddr_in6 name = {.sin6_family = (sa_family_t)family, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  if (family == AF_INET) {
    memset(&name, 0, sizeof name);
    name.sin6_family = AF_INET;
    ((struct sockaddr_in*)&name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  return name;
}

static socklen_t size_of(int family) {
  return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static void wait_for_error(int fd) {
  struct pollfd poll_for = {.fd = fd};
  CHECK_EQUAL(poll(&poll_for, 1, 10000), 1);
  CHECK((poll_for.revents & POLLERR) != 0);
}

/// Nobody has the peer's port: a socket that had it is closed.
static int refused(int family) {
  struct sockaddr_in6 name = loopback(family);
  socklen_t size = size_of(family);
  int fd = socket(family, SOCK_DGRAM, 0), peer = socket(family, SOCK_DGRAM, 0);
  CHECK_EQUAL(bind(peer, (struct sockaddr*)&name, size), 0);
  CHECK_EQUAL(getsockname(peer, (struct sockaddr*)&name, &size), 0);
  CHECK_EQUAL(connect(fd, (struct sockaddr*)&name, size), 0);
  CHECK_EQUAL(close(peer), 0);
  CHECK_EQUAL(send(fd, "x", 1, 0), 1);
  wait_for_error(fd);
  return fd;
}

static int reset(int family, bool after_end) {
  struct sockaddr_in6 name = loopback(family);
  socklen_t size = size_of(family);
  int listener = socket(family, SOCK_STREAM, 0), client = socket(family, SOCK_STREAM, 0);
  CHECK_EQUAL(bind(listener, (struct sockaddr*)&name, size), 0);
  CHECK_EQUAL(listen(listener, 5), 0);
  CHECK_EQUAL(getsockname(listener, (struct sockaddr*)&name, &size), 0);
  CHECK_EQUAL(connect(client, (struct sockaddr*)&name, size), 0);
  int fd = accept(listener, NULL, NULL);
  CHECK(fd >= 0 && close(listener) == 0);
  char byte;
  if (after_end) {
    CHECK_EQUAL(shutdown(client, SHUT_WR), 0);
    CHECK_EQUAL(recv(fd, &byte, 1, 0), 0);
  }
  struct linger abort = {1, 0};
  CHECK_EQUAL(setsockopt(client, SOL_SOCKET, SO_LINGER, &abort, sizeof abort), 0);
  CHECK_EQUAL(close(client), 0);
  wait_for_error(fd);
  return fd;
}

static int error_of(int fd) {
  int error = -1;
  socklen_t size = sizeof error;
  CHECK_EQUAL(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size), 0);
  return error;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  const struct {
    int fd, error;
  } sockets[] = {
      {refused(AF_INET), ECONNREFUSED}, {refused(AF_INET6), ECONNREFUSED},   {reset(AF_INET, false), ECONNRESET},
      {reset(AF_INET6, false), ECONNRESET}, {reset(AF_INET, true), EPIPE}, {reset(AF_INET6, true), EPIPE},
  };
  target_ready();
  target_wait(NULL);
  for (size_t i = 0; i < sizeof sockets / sizeof *sockets; ++i) {
    if (i % 2 == 0 && sockets[i].error != EPIPE) {  // recv tells the end first
      char byte;
      CHECK_EQUAL(recv(sockets[i].fd, &byte, 1, MSG_DONTWAIT), -1);
      CHECK_EQUAL(errno, sockets[i].error);
    } else {
      CHECK_EQUAL(error_of(sockets[i].fd), sockets[i].error);
    }
    CHECK_EQUAL(error_of(sockets[i].fd), 0);
  }
  target_pass();
}
