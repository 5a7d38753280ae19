// UDP sockets that were shut down for receiving, sending, both.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "target.h"

enum { kCount = 6 };

static int errno_of_send(int fd) { return send(fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0; }

static int events_of(int fd) {
  struct pollfd poll_one = {fd, POLLIN | POLLRDHUP, 0};
  poll(&poll_one, 1, 0);
  return poll_one.revents;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int fds[kCount], errors[kCount], events[kCount];
  for (int i = 0; i < kCount; ++i) {
    const int family = i < 3 ? AF_INET : AF_INET6;
    struct sockaddr_in6 name = {.sin6_family = (sa_family_t)family, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    if (family == AF_INET)
      memset(&name, 0, sizeof name), ((struct sockaddr_in*)&name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin6_family = (sa_family_t)family;
    socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof name;
    int receiver = socket(family, SOCK_DGRAM, 0);
    fds[i] = socket(family, SOCK_DGRAM, 0);
    CHECK_EQUAL(bind(receiver, (struct sockaddr*)&name, size), 0);
    CHECK_EQUAL(getsockname(receiver, (struct sockaddr*)&name, &size), 0);
    CHECK_EQUAL(connect(fds[i], (struct sockaddr*)&name, size), 0);
    CHECK_EQUAL(shutdown(fds[i], i % 3 == 0 ? SHUT_WR : i % 3 == 1 ? SHUT_RD : SHUT_RDWR), 0);
    errors[i] = errno_of_send(fds[i]);
    events[i] = events_of(fds[i]);
  }
  CHECK_EQUAL(errors[0], EPIPE);
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < kCount; ++i) {
    CHECK_EQUAL(errno_of_send(fds[i]), errors[i]);
    CHECK_EQUAL(events_of(fds[i]), events[i]);
  }
  target_pass();
}
