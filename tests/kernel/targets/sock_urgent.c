// The urgent byte (MSG_OOB) of a unix stream, in the middle of what waits and at its end.
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  int middle[2], end[2];
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, middle), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, end), 0);
  CHECK_EQUAL(send(middle[0], "before", 6, 0), 6);
  if (send(middle[0], "!", 1, MSG_OOB) != 1) target_skip("this kernel has no MSG_OOB for unix sockets");
  CHECK_EQUAL(send(middle[0], "after", 5, 0), 5);
  CHECK_EQUAL(send(end[0], "text", 4, 0), 4);
  CHECK_EQUAL(send(end[0], "?", 1, MSG_OOB), 1);
  target_ready();
  target_wait(NULL);
  char text[32];
  int at_mark = -1;
  CHECK_EQUAL(recv(middle[1], text, sizeof text, MSG_DONTWAIT), 6);
  CHECK_EQUAL(ioctl(middle[1], SIOCATMARK, &at_mark), 0);
  CHECK_EQUAL(at_mark, 1);
  CHECK_EQUAL(recv(middle[1], text, 1, MSG_OOB), 1);
  CHECK_EQUAL(text[0], '!');
  CHECK_EQUAL(recv(middle[1], text, sizeof text, MSG_DONTWAIT), 5);
  CHECK_EQUAL(recv(end[1], text, sizeof text, MSG_DONTWAIT), 4);
  CHECK_EQUAL(recv(end[1], text, 1, MSG_OOB), 1);
  CHECK_EQUAL(text[0], '?');
  target_pass();
}
