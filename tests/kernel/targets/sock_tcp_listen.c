// TCP sockets that listen, over IPv4 and IPv6: port, backlog, and new connections.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "target.h"

static int listen_on(int family, struct sockaddr_in6* name, socklen_t* size) {
  int fd = socket(family, SOCK_STREAM, 0);
  memset(name, 0, sizeof *name);
  name->sin6_family = (sa_family_t)family;
  *size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof *name;
  if (family == AF_INET)
    ((struct sockaddr_in*)name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  else
    name->sin6_addr = in6addr_loopback;
  CHECK_EQUAL(bind(fd, (struct sockaddr*)name, *size), 0);
  CHECK_EQUAL(listen(fd, 13), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)name, size), 0);
  return fd;
}

static void check(int listener, int family, const struct sockaddr_in6* name, socklen_t size) {
  struct tcp_info info;
  socklen_t length = sizeof info;
  CHECK_EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  CHECK_EQUAL(info.tcpi_sacked, 13);  // of a listening socket: its backlog
  int client = socket(family, SOCK_STREAM, 0);
  CHECK_EQUAL(connect(client, (const struct sockaddr*)name, size), 0);
  int server = accept(listener, NULL, NULL);
  char text[8];
  CHECK_EQUAL(send(client, "hello", 5, 0), 5);
  CHECK_EQUAL(recv(server, text, sizeof text, 0), 5);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct sockaddr_in6 four_name, six_name;
  socklen_t four_size, six_size;
  int four = listen_on(AF_INET, &four_name, &four_size), six = listen_on(AF_INET6, &six_name, &six_size);
  target_ready();
  target_wait(NULL);
  check(four, AF_INET, &four_name, four_size);
  check(six, AF_INET6, &six_name, six_size);
  target_pass();
}
