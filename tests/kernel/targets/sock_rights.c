// Descriptors in flight: a file, an end of a pipe, a socket with bytes of its own, and the socket that carries them.
#include <sys/socket.h>
#include <sys/stat.h>

#include "target.h"

static void send_descriptors(int fd, char byte, const int* fds, size_t count) {
  char control[CMSG_SPACE(4 * sizeof(int))] = {0};
  struct iovec part = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
  struct cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(count * sizeof(int));
  memcpy(CMSG_DATA(head), fds, count * sizeof(int));
  CHECK_EQUAL(sendmsg(fd, &message, 0), 1);
}

static size_t receive_descriptors(int fd, char* byte, int* fds) {
  char control[CMSG_SPACE(4 * sizeof(int))];
  struct iovec part = {byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  CHECK_EQUAL(recvmsg(fd, &message, MSG_DONTWAIT), 1);
  struct cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head == NULL) return 0;
  size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  memcpy(fds, CMSG_DATA(head), count * sizeof(int));
  return count;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int way[2], ends[2], inner[2], file = open("file", O_CREAT | O_RDWR, 0600);
  CHECK_EQUAL(write(file, "content", 7), 7);
  CHECK_EQUAL(lseek(file, 3, SEEK_SET), 3);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, way), 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, inner), 0);
  CHECK_EQUAL(pipe(ends), 0);
  CHECK_EQUAL(write(ends[1], "piped", 5), 5);
  CHECK_EQUAL(send(inner[0], "inside", 6, 0), 6);
  CHECK_EQUAL(send(way[0], ".", 1, 0), 1);
  send_descriptors(way[0], 'a', (int[]){file, ends[0]}, 2);
  send_descriptors(way[0], 'b', (int[]){inner[1], way[1]}, 2);
  CHECK_EQUAL(send(way[0], ".", 1, 0), 1);
  // The file lives on under its number, too; the others are only in flight.
  CHECK_EQUAL(close(ends[0]), 0);
  CHECK_EQUAL(close(inner[1]), 0);
  target_ready();
  target_wait(NULL);
  char byte, text[16];
  int fds[4];
  CHECK_EQUAL(receive_descriptors(way[1], &byte, fds), 0);
  CHECK_EQUAL(receive_descriptors(way[1], &byte, fds), 2);
  CHECK_EQUAL(byte, 'a');
  CHECK_EQUAL(read(fds[0], text, 2), 2);
  CHECK(memcmp(text, "te", 2) == 0);
  CHECK_EQUAL(lseek(file, 0, SEEK_CUR), 5);  // one open file description
  CHECK_EQUAL(read(fds[1], text, sizeof text), 5);
  CHECK_EQUAL(receive_descriptors(way[1], &byte, fds), 2);
  CHECK_EQUAL(byte, 'b');
  CHECK_EQUAL(recv(fds[0], text, sizeof text, MSG_DONTWAIT), 6);
  CHECK(memcmp(text, "inside", 6) == 0);
  CHECK_EQUAL(recv(fds[1], text, sizeof text, MSG_DONTWAIT), 1);
  CHECK_EQUAL(text[0], '.');
  target_pass();
}
