// Options that count only when a socket is bound, and have been cleared since: a port that several share, an address
// that the machine does not have, an address without a port.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "target.h"

enum { kShared = 2, kKinds = 4 };

struct group {
  int family, type;
  const char* address;
  int fds[kShared];
  struct sockaddr_in6 name;
  socklen_t size;
};

static int get(int fd, int level, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  CHECK_EQUAL(getsockopt(fd, level, option, &value, &size), 0);
  return value;
}

static void set(int fd, int level, int option, int value) {
  if (setsockopt(fd, level, option, &value, sizeof value) != 0)
    target_fail("option %d of level %d: errno %d", option, level, errno);
}

static socklen_t make_name(int family, const char* address, struct sockaddr_in6* name) {
  memset(name, 0, sizeof *name);
  name->sin6_family = (sa_family_t)family;
  void* where = family == AF_INET ? (void*)&((struct sockaddr_in*)name)->sin_addr : (void*)&name->sin6_addr;
  CHECK_EQUAL(inet_pton(family, address, where), 1);
  return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof *name;
}

static void expect_name(int fd, const struct sockaddr_in6* name, socklen_t size) {
  struct sockaddr_in6 now;
  socklen_t now_size = sizeof now;
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&now, &now_size), 0);
  CHECK_EQUAL(now_size, size);
  CHECK_EQUAL(memcmp(&now, name, size), 0);
}

static void share(struct group* g) {
  g->size = make_name(g->family, g->address, &g->name);
  for (int i = 0; i < kShared; ++i) {
    int fd = g->fds[i] = socket(g->family, g->type, 0);
    set(fd, SOL_SOCKET, g->type == SOCK_STREAM ? SO_REUSEPORT : SO_REUSEADDR, 1);
    CHECK_EQUAL(bind(fd, (struct sockaddr*)&g->name, g->size), 0);
    if (g->type == SOCK_STREAM) CHECK_EQUAL(listen(fd, 5), 0);
    socklen_t size = sizeof g->name;
    CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&g->name, &size), 0);
  }
  set(g->fds[0], SOL_SOCKET, g->type == SOCK_STREAM ? SO_REUSEPORT : SO_REUSEADDR, 0);
}

static void expect_shared(const struct group* g) {
  for (int i = 0; i < kShared; ++i) {
    expect_name(g->fds[i], &g->name, g->size);
    CHECK_EQUAL(get(g->fds[i], SOL_SOCKET, g->type == SOCK_STREAM ? SO_REUSEPORT : SO_REUSEADDR), i);
    CHECK_EQUAL(get(g->fds[i], SOL_SOCKET, g->type == SOCK_STREAM ? SO_REUSEADDR : SO_REUSEPORT), 0);
  }
}

static int bind_foreign(int family, const char* address, struct sockaddr_in6* name) {
  const int level = family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6,
            option = family == AF_INET ? IP_FREEBIND : IPV6_FREEBIND;
  int fd = socket(family, SOCK_DGRAM, 0);
  socklen_t size = make_name(family, address, name);
  set(fd, level, option, 1);
  CHECK_EQUAL(bind(fd, (struct sockaddr*)name, size), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)name, &size), 0);
  set(fd, level, option, 0);
  return fd;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct group groups[kKinds] = {
      {.family = AF_INET, .type = SOCK_STREAM, .address = "127.0.0.1"},
      {.family = AF_INET6, .type = SOCK_STREAM, .address = "::1"},
      {.family = AF_INET, .type = SOCK_DGRAM, .address = "127.0.0.1"},
      {.family = AF_INET6, .type = SOCK_DGRAM, .address = "::1"},
  };
  for (int i = 0; i < kKinds; ++i) share(&groups[i]);
  struct sockaddr_in6 foreign4, foreign6, portless;
  int four = bind_foreign(AF_INET, "192.0.2.1", &foreign4), six = bind_foreign(AF_INET6, "2001:db8::1", &foreign6);
  int later = socket(AF_INET, SOCK_STREAM, 0);
  socklen_t size = make_name(AF_INET, "127.0.0.1", &portless);
  set(later, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  CHECK_EQUAL(bind(later, (struct sockaddr*)&portless, size), 0);
  set(later, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0);
  expect_name(later, &portless, size);
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < kKinds; ++i) expect_shared(&groups[i]);
  expect_name(four, &foreign4, sizeof(struct sockaddr_in));
  expect_name(six, &foreign6, sizeof foreign6);
  CHECK_EQUAL(get(four, IPPROTO_IP, IP_FREEBIND), 0);
  CHECK_EQUAL(get(six, IPPROTO_IPV6, IPV6_FREEBIND), 0);
  expect_name(later, &portless, size);
  CHECK_EQUAL(get(later, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT), 0);
  target_pass();
}
