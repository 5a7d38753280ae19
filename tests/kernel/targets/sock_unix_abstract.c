// Abstract names: a listening socket, its connection, and the name taken for nobody else.
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct sockaddr_un name = {AF_UNIX, {0}}, found;
  int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "ckpt %d", getpid());
  name.sun_path[length + 1] = 0;  // a NUL is a byte of the name like any other
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length + 2), got = sizeof found;
  int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0), client = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  CHECK_EQUAL(bind(listener, (struct sockaddr*)&name, size), 0);
  CHECK_EQUAL(listen(listener, 5), 0);
  CHECK_EQUAL(connect(client, (struct sockaddr*)&name, size), 0);
  int server = accept(listener, NULL, NULL);
  CHECK_EQUAL(send(client, "record", 6, 0), 6);
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < 2; ++i) {
    got = sizeof found;
    CHECK_EQUAL(getsockname(i == 0 ? listener : server, (struct sockaddr*)&found, &got), 0);
    CHECK_EQUAL(got, size);
    CHECK_EQUAL(memcmp(&found, &name, size), 0);
  }
  char text[16];
  CHECK_EQUAL(recv(server, text, sizeof text, MSG_DONTWAIT), 6);
  int other = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  CHECK(bind(other, (struct sockaddr*)&name, size) == -1 && errno == EADDRINUSE);
  CHECK_EQUAL(connect(other, (struct sockaddr*)&name, size), 0);
  int next = accept(listener, NULL, NULL);
  CHECK_EQUAL(send(other, "new", 3, 0), 3);
  CHECK_EQUAL(recv(next, text, sizeof text, MSG_DONTWAIT), 3);
  target_pass();
}
