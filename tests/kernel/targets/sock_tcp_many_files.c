// A TCP connection (--tcp-established) of a process with more than a thousand sockets.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "target.h"

enum { kSockets = 1100 };

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct rlimit limit;
  CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2 * kSockets) target_skip("no more than %ld descriptors", (long)limit.rlim_max);
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof name;
  int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), last = -1;
  CHECK_EQUAL(bind(listener, (struct sockaddr*)&name, sizeof name), 0);
  CHECK_EQUAL(listen(listener, 5), 0);
  CHECK_EQUAL(getsockname(listener, (struct sockaddr*)&name, &size), 0);
  CHECK_EQUAL(connect(client, (struct sockaddr*)&name, size), 0);
  int server = accept(listener, NULL, NULL);
  CHECK_EQUAL(close(listener), 0);
  for (int i = 0; i < kSockets; ++i) CHECK((last = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
  target_ready();
  target_wait(NULL);
  int type = 0;
  char text[8];
  CHECK_EQUAL(getsockopt(last, SOL_SOCKET, SO_TYPE, &type, &size), 0);
  CHECK_EQUAL(type, SOCK_DGRAM);
  CHECK_EQUAL(send(client, "hello", 5, 0), 5);
  CHECK_EQUAL(recv(server, text, sizeof text, 0), 5);
  target_pass();
}
