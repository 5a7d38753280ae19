// A unix socket that listens on a file by a relative name: its backlog, a connection that was accepted and two that
// were not, modes of the file.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "target.h"

static const struct sockaddr_un kName = {AF_UNIX, "listen"};

static int connect_here(void) {
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  CHECK_EQUAL(connect(fd, (const struct sockaddr*)&kName, sizeof kName), 0);
  return fd;
}

static void exchange(int from, int to, char byte) {
  char got;
  CHECK_EQUAL(send(from, &byte, 1, MSG_NOSIGNAL), 1);
  CHECK_EQUAL(recv(to, &got, 1, MSG_DONTWAIT), 1);
  CHECK_EQUAL(got, byte);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  CHECK_EQUAL(bind(listener, (const struct sockaddr*)&kName, sizeof kName), 0);
  CHECK_EQUAL(chmod("listen", 0620), 0);
  CHECK_EQUAL(listen(listener, 3), 0);
  int client = connect_here(), server = accept(listener, NULL, NULL), first = connect_here(), second = connect_here();
  CHECK_EQUAL(send(client, "q", 1, 0), 1);
  target_ready();
  target_wait(NULL);
  struct sockaddr_un name;
  socklen_t size = sizeof name;
  struct stat file;
  CHECK_EQUAL(getsockname(listener, (struct sockaddr*)&name, &size), 0);
  CHECK_EQUAL(strcmp(name.sun_path, "listen"), 0);
  size = sizeof name;
  CHECK_EQUAL(getpeername(client, (struct sockaddr*)&name, &size), 0);
  CHECK_EQUAL(strcmp(name.sun_path, "listen"), 0);
  CHECK_EQUAL(stat("listen", &file), 0);
  CHECK_EQUAL(file.st_mode, S_IFSOCK | 0620);
  char byte;
  CHECK_EQUAL(recv(server, &byte, 1, MSG_DONTWAIT), 1);
  CHECK_EQUAL(byte, 'q');
  exchange(server, client, 'a');
  int accepted = accept(listener, NULL, NULL), next = accept(listener, NULL, NULL);
  exchange(accepted, first, 'b');
  exchange(next, second, 'c');
  // One more than the backlog fits; the next would have to wait.
  for (int i = 0; i < 4; ++i) connect_here();
  int late = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
  CHECK(connect(late, (const struct sockaddr*)&kName, sizeof kName) == -1 && errno == EAGAIN);
  target_pass();
}
