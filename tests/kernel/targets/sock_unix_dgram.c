// Datagram sockets with names: queued messages keep their senders, also one that is gone; a connected client sends on.
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "target.h"

static int named(const char* path) {
  struct sockaddr_un name = {AF_UNIX, {0}};
  strcpy(name.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
  CHECK_EQUAL(bind(fd, (struct sockaddr*)&name, sizeof name), 0);
  return fd;
}

static void send_to(int fd, const char* path, const char* text) {
  struct sockaddr_un name = {AF_UNIX, {0}};
  strcpy(name.sun_path, path);
  CHECK_EQUAL(sendto(fd, text, strlen(text), 0, (struct sockaddr*)&name, sizeof name), strlen(text));
}

static void expect(int fd, const char* text, const char* sender) {
  struct sockaddr_un from;
  memset(&from, 0, sizeof from);
  socklen_t size = sizeof from;
  char found[64] = "";
  CHECK_EQUAL(recvfrom(fd, found, sizeof found - 1, MSG_DONTWAIT, (struct sockaddr*)&from, &size), strlen(text));
  if (strcmp(found, text) != 0) target_fail("received \"%s\", not \"%s\"", found, text);
  const char* path = size > offsetof(struct sockaddr_un, sun_path) ? from.sun_path : "";
  if (strcmp(path, sender) != 0) target_fail("received from \"%s\", not \"%s\"", path, sender);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int server = named("server"), client = named("client"), unnamed = socket(AF_UNIX, SOCK_DGRAM, 0),
      gone = named("gone");
  struct sockaddr_un name = {AF_UNIX, "server"};
  CHECK_EQUAL(connect(unnamed, (struct sockaddr*)&name, sizeof name), 0);
  send_to(client, "server", "one");
  CHECK_EQUAL(send(unnamed, "two", 3, 0), 3);
  send_to(gone, "server", "three");
  CHECK_EQUAL(close(gone), 0);
  CHECK_EQUAL(unlink("gone"), 0);
  target_ready();
  target_wait(NULL);
  expect(server, "one", "client");
  expect(server, "two", "");
  expect(server, "three", "gone");
  CHECK_EQUAL(send(unnamed, "four", 4, 0), 4);
  expect(server, "four", "");
  send_to(server, "client", "answer");
  expect(client, "answer", "server");
  CHECK(access("gone", F_OK) == -1);
  target_pass();
}
