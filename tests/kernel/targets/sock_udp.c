// UDP over IPv4 and IPv6: addresses, a connected peer, queued datagrams with their senders, an empty one among them.
#include <netinet/in.h>
#include <sys/socket.h>

#include "target.h"

struct ends {
  int server, client;
  struct sockaddr_in6 server_name, client_name;
  socklen_t size;
};

static int bound(int family, struct sockaddr_in6* name, socklen_t* size) {
  int fd = socket(family, SOCK_DGRAM, 0);
  memset(name, 0, sizeof *name);
  name->sin6_family = (sa_family_t)family;
  *size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof *name;
  if (family == AF_INET)
    ((struct sockaddr_in*)name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  else
    name->sin6_addr = in6addr_loopback;
  CHECK_EQUAL(bind(fd, (struct sockaddr*)name, *size), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)name, size), 0);
  return fd;
}

static void set_up(int family, struct ends* e) {
  e->server = bound(family, &e->server_name, &e->size);
  e->client = bound(family, &e->client_name, &e->size);
  CHECK_EQUAL(connect(e->client, (struct sockaddr*)&e->server_name, e->size), 0);
  CHECK_EQUAL(send(e->client, "one", 3, 0), 3);
  CHECK_EQUAL(send(e->client, "", 0, 0), 0);
  CHECK_EQUAL(send(e->client, "three", 5, 0), 5);
}

static void check(struct ends* e) {
  static const char* kTexts[] = {"one", "", "three"};
  char text[16];
  struct sockaddr_in6 from;
  socklen_t size;
  for (int i = 0; i < 3; ++i) {
    memset(&from, 0, size = sizeof from);
    CHECK_EQUAL(recvfrom(e->server, text, sizeof text, MSG_DONTWAIT, (struct sockaddr*)&from, &size),
                strlen(kTexts[i]));
    CHECK_EQUAL(memcmp(text, kTexts[i], strlen(kTexts[i])), 0);
    CHECK_EQUAL(memcmp(&from, &e->client_name, e->size), 0);
  }
  CHECK(recv(e->server, text, sizeof text, MSG_DONTWAIT) == -1 && errno == EAGAIN);
  size = sizeof from;
  CHECK_EQUAL(getpeername(e->client, (struct sockaddr*)&from, &size), 0);
  CHECK_EQUAL(memcmp(&from, &e->server_name, e->size), 0);
  CHECK_EQUAL(sendto(e->server, "back", 4, 0, (struct sockaddr*)&e->client_name, e->size), 4);
  CHECK_EQUAL(recv(e->client, text, sizeof text, 0), 4);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct ends four, six;
  set_up(AF_INET, &four);
  set_up(AF_INET6, &six);
  target_ready();
  target_wait(NULL);
  check(&four);
  check(&six);
  target_pass();
}
