// TCP sockets whose connection both ends have closed, or a reset: they read as ended, after what they have not read,
// and still know both addresses.
#include <netinet/in.h>
#include <sys/socket.h>

#include "target.h"

enum { kEnds = 10, kUnread = 20000 };
struct end {
  int fd;
  struct sockaddr_in6 own, peer;
  size_t unread;
};
static char data[kUnread];

static char byte_at(size_t at) { return (char)(at * 7 + at / 251); }

static void take_names(int fd, struct sockaddr_in6* own, struct sockaddr_in6* peer, socklen_t length) {
  socklen_t size = length;
  memset(own, 0, sizeof *own), memset(peer, 0, sizeof *peer);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)own, &size), 0);
  size = length;
  CHECK_EQUAL(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, peer, &size), 0);
}

static int errno_of_getpeername(int fd) {
  struct sockaddr_in6 name;
  socklen_t size = sizeof name;
  return getpeername(fd, (struct sockaddr*)&name, &size) == 0 ? 0 : errno;
}

static void make(int family, bool reset, struct end* client, struct end* server) {
  struct sockaddr_in6 name = {.sin6_family = (sa_family_t)family, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof name, length = size;
  if (family == AF_INET) {
    memset(&name, 0, sizeof name);
    name.sin6_family = AF_INET;
    ((struct sockaddr_in*)&name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  int listener = socket(family, SOCK_STREAM, 0);
  CHECK_EQUAL(bind(listener, (struct sockaddr*)&name, size), 0);
  CHECK_EQUAL(listen(listener, 5), 0);
  CHECK_EQUAL(getsockname(listener, (struct sockaddr*)&name, &size), 0);
  client->fd = socket(family, SOCK_STREAM, 0);
  CHECK_EQUAL(connect(client->fd, (struct sockaddr*)&name, size), 0);
  server->fd = accept(listener, NULL, NULL);
  CHECK_EQUAL(close(listener), 0);
  take_names(server->fd, &server->own, &server->peer, length);
  char byte;
  if (reset) {
    struct linger abort = {1, 0};
    CHECK_EQUAL(setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &abort, sizeof abort), 0);
    CHECK_EQUAL(close(client->fd), 0);
    CHECK_EQUAL(recv(server->fd, &byte, 1, 0), -1);
    client->fd = -1;
    return;
  }
  for (size_t sent = 0; sent < server->unread;) {
    const ssize_t part = send(client->fd, data + sent, server->unread - sent, 0);
    CHECK(part > 0);
    sent += (size_t)part;
  }
  CHECK_EQUAL(shutdown(client->fd, SHUT_WR), 0);
  if (server->unread == 0) CHECK_EQUAL(recv(server->fd, &byte, 1, 0), 0);
  CHECK_EQUAL(shutdown(server->fd, SHUT_WR), 0);
  CHECK_EQUAL(recv(client->fd, &byte, 1, 0), 0);
  // The last acknowledgement may be on its way.
  while (errno_of_getpeername(client->fd) == 0 || errno_of_getpeername(server->fd) == 0) usleep(1000);
  take_names(client->fd, &client->own, &client->peer, length);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  static struct end ends[kEnds];
  for (size_t i = 0; i < kUnread; ++i) data[i] = byte_at(i);
  ends[7].unread = 6, ends[9].unread = kUnread;
  make(AF_INET, false, &ends[0], &ends[1]);
  make(AF_INET6, false, &ends[2], &ends[3]);
  make(AF_INET, true, &ends[4], &ends[5]);
  make(AF_INET, false, &ends[6], &ends[7]);
  make(AF_INET6, false, &ends[8], &ends[9]);
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < kEnds; ++i) {
    char byte;
    struct sockaddr_in6 own, peer;
    if (ends[i].fd < 0) continue;
    for (size_t got = 0; got < ends[i].unread; ++got) {
      CHECK_EQUAL(recv(ends[i].fd, &byte, 1, MSG_DONTWAIT), 1);
      CHECK_EQUAL(byte, byte_at(got));
    }
    CHECK_EQUAL(recv(ends[i].fd, &byte, 1, MSG_DONTWAIT), 0);
    CHECK_EQUAL(send(ends[i].fd, "x", 1, MSG_NOSIGNAL), -1);
    CHECK_EQUAL(errno, EPIPE);
    CHECK_EQUAL(errno_of_getpeername(ends[i].fd), ENOTCONN);
    take_names(ends[i].fd, &own, &peer, i == 2 || i == 3 || i == 8 || i == 9 ? sizeof own : sizeof(struct sockaddr_in));
    if (memcmp(&own, &ends[i].own, sizeof own) != 0) target_fail("end %d has another address", i);
    if (memcmp(&peer, &ends[i].peer, sizeof peer) != 0) target_fail("end %d has another peer", i);
  }
  target_pass();
}
