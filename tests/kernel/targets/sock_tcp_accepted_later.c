// A connection that nobody has accepted yet (--tcp-established): dump waits until it is. It is used afterwards.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "target.h"

static int g_listener;
static volatile int g_accepted = -1;

static void* accept_later(void* unused) {
  struct timespec moment = {0, 700 * 1000 * 1000};
  nanosleep(&moment, NULL);
  int fd = accept(g_listener, NULL, NULL);
  CHECK(fd >= 0);
  CHECK_EQUAL(close(g_listener), 0);
  g_accepted = fd;
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof name;
  const int on = 1;
  int client = socket(AF_INET, SOCK_STREAM, 0);
  g_listener = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_EQUAL(setsockopt(g_listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  CHECK_EQUAL(bind(g_listener, (struct sockaddr*)&name, sizeof name), 0);
  CHECK_EQUAL(listen(g_listener, 5), 0);
  CHECK_EQUAL(getsockname(g_listener, (struct sockaddr*)&name, &size), 0);
  CHECK_EQUAL(connect(client, (struct sockaddr*)&name, size), 0);
  pthread_t thread;
  CHECK_EQUAL(pthread_create(&thread, NULL, accept_later, NULL), 0);
  target_ready();
  target_wait(NULL);
  while (g_accepted < 0) usleep(1000);
  struct pollfd incoming = {client, POLLIN, 0};
  char text[8];
  CHECK_EQUAL(send(g_accepted, "hello", 5, 0), 5);
  CHECK_EQUAL(poll(&incoming, 1, 10000), 1);
  CHECK_EQUAL(recv(client, text, sizeof text, 0), 5);
  target_pass();
}
