/* One end of a connection that checks itself: counters go both ways, and none may be missing or come twice.
   usage: together_peer listen|connect ADDRESS PORT STATUS [PAUSE_US]
   STATUS gets a line of fixed width now and then: what was received and sent, or what is wrong. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int status;
static uint64_t received, sent, bytes_in, bytes_out;

static void tell(const char* how) {
  char line[65];
  snprintf(line, sizeof line, "%-8s %20llu %20llu             \n", how, (unsigned long long)received,
           (unsigned long long)sent);
  if (pwrite(status, line, 64, 0) != 64) _exit(4);
}

static void end(const char* how) {
  tell(how);
  _exit(1);
}

static int connection(const char* role, const char* address, const char* port) {
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  inet_pton(AF_INET, address, &name.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  if (strcmp(role, "connect") == 0) {
    for (int i = 0; i < 2000; ++i) {
      if (connect(fd, (struct sockaddr*)&name, sizeof name) == 0) return fd;
      usleep(5000);
    }
    return -1;
  }
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, (struct sockaddr*)&name, sizeof name) != 0 || listen(fd, 8) != 0) return -1;
  return accept4(fd, NULL, NULL, SOCK_CLOEXEC); /* the listening socket stays */
}

static void take(int fd) {
  static uint64_t numbers[8192];
  const size_t part = bytes_in % 8;
  const ssize_t got = recv(fd, (char*)numbers + part, sizeof numbers - part, MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return;
  if (got < 0) end(strerrorname_np(errno));
  if (got == 0) end("closed");
  const size_t all = part + (size_t)got;
  for (size_t i = 0; i < all / 8; ++i) {
    if (numbers[i] != received++) end("broken");
  }
  numbers[0] = numbers[all / 8];
  bytes_in += (uint64_t)got;
}

static void give(int fd) {
  static uint64_t numbers[8192];
  for (size_t i = 0; i < 8192; ++i) numbers[i] = bytes_out / 8 + i;
  const size_t part = bytes_out % 8;
  const size_t size = sizeof numbers - part - (size_t)(rand() % 4096);
  const ssize_t put = send(fd, (char*)numbers + part, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put < 0 && errno == EAGAIN) return;
  if (put < 0) end(strerrorname_np(errno));
  bytes_out += (uint64_t)put;
  sent = bytes_out / 8;
}

int main(int argc, char** argv) {
  if (argc < 5) return 3;
  status = open(argv[4], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const int fd = connection(argv[1], argv[2], argv[3]), pause = argc > 5 ? atoi(argv[5]) : 300;
  if (status < 0 || fd < 0) return 3;
  for (unsigned turn = 0;; ++turn) {
    struct pollfd wait = {fd, POLLIN | POLLOUT, 0};
    if (poll(&wait, 1, 10) < 0 && errno != EINTR) end("poll");
    if (wait.revents & (POLLIN | POLLHUP | POLLERR)) take(fd);
    if (wait.revents & POLLOUT) give(fd);
    if (turn % 16 == 0) tell("well");
    usleep((useconds_t)pause);
  }
}
