// Unix connections that one end has shut down or closed: what was sent is there, then comes the end; an end that was
// closed with something unread is a reset.
#include <sys/socket.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  int half[2], deaf[2], closed[2], reset[2], records[2];
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, half), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, deaf), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, closed), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, reset), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, records), 0);
  CHECK_EQUAL(send(half[0], "last", 4, 0), 4);
  CHECK_EQUAL(shutdown(half[0], SHUT_WR), 0);
  CHECK_EQUAL(shutdown(deaf[0], SHUT_RD), 0);
  CHECK_EQUAL(send(closed[0], "left", 4, 0), 4);
  CHECK_EQUAL(close(closed[0]), 0);
  CHECK_EQUAL(send(reset[1], "unread", 6, 0), 6);
  CHECK_EQUAL(close(reset[0]), 0);
  CHECK_EQUAL(send(records[0], "", 0, 0), 0);
  CHECK_EQUAL(send(records[0], "r", 1, 0), 1);
  CHECK_EQUAL(shutdown(records[0], SHUT_RDWR), 0);
  target_ready();
  target_wait(NULL);
  char text[16];
  CHECK_EQUAL(recv(half[1], text, sizeof text, MSG_DONTWAIT), 4);
  CHECK_EQUAL(recv(half[1], text, sizeof text, MSG_DONTWAIT), 0);
  CHECK_EQUAL(send(half[1], "back", 4, 0), 4);
  CHECK_EQUAL(recv(half[0], text, sizeof text, MSG_DONTWAIT), 4);
  CHECK(send(half[0], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
  CHECK(send(deaf[1], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
  CHECK_EQUAL(send(deaf[0], "yes", 3, 0), 3);
  CHECK_EQUAL(recv(deaf[1], text, sizeof text, MSG_DONTWAIT), 3);
  CHECK_EQUAL(recv(closed[1], text, sizeof text, MSG_DONTWAIT), 4);
  CHECK(memcmp(text, "left", 4) == 0);
  CHECK_EQUAL(recv(closed[1], text, sizeof text, MSG_DONTWAIT), 0);
  CHECK(recv(reset[1], text, sizeof text, MSG_DONTWAIT) == -1 && errno == ECONNRESET);
  CHECK_EQUAL(recv(reset[1], text, sizeof text, MSG_DONTWAIT), 0);
  CHECK_EQUAL(recv(records[1], text, sizeof text, MSG_DONTWAIT), 0);
  CHECK_EQUAL(recv(records[1], text, sizeof text, MSG_DONTWAIT), 1);
  CHECK_EQUAL(recv(records[1], text, sizeof text, MSG_DONTWAIT), 0);
  target_pass();
}
