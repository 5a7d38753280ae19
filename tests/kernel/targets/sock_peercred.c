// Peer credentials, of a pair and of a connection between processes, and credentials that came with messages: they name
// those who made the calls, also one that has ended since.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "target.h"

static struct ucred peer_of(int fd) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  CHECK_EQUAL(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size), 0);
  return peer;
}

static pid_t sender_of(int fd) {
  char byte, control[CMSG_SPACE(sizeof(struct ucred))];
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct ucred sender;
  CHECK_EQUAL(recvmsg(fd, &message, MSG_DONTWAIT), 1);
  struct cmsghdr* head = CMSG_FIRSTHDR(&message);
  CHECK(head != NULL && head->cmsg_type == SCM_CREDENTIALS);
  memcpy(&sender, CMSG_DATA(head), sizeof sender);
  return sender.pid;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  const struct sockaddr_un name = {AF_UNIX, "listen"};
  int pair[2], on = 1, listener = socket(AF_UNIX, SOCK_STREAM, 0);
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
  CHECK_EQUAL(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
  CHECK_EQUAL(bind(listener, (const struct sockaddr*)&name, sizeof name), 0);
  CHECK_EQUAL(listen(listener, 3), 0);
  int client = socket(AF_UNIX, SOCK_STREAM, 0);
  pid_t child = fork();
  if (child == 0) {
    if (connect(client, (const struct sockaddr*)&name, sizeof name) != 0 || send(pair[1], "c", 1, 0) != 1) _exit(1);
    _exit(0);
  }
  int status;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
  int server = accept(listener, NULL, NULL);
  CHECK_EQUAL(send(pair[1], "p", 1, 0), 1);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(peer_of(pair[0]).pid, getpid());
  CHECK_EQUAL(peer_of(client).pid, getpid());
  CHECK_EQUAL(peer_of(listener).pid, getpid());
  CHECK_EQUAL(peer_of(server).pid, child);
  CHECK_EQUAL(peer_of(server).uid, geteuid());
  CHECK_EQUAL(sender_of(pair[0]), child);
  CHECK_EQUAL(sender_of(pair[0]), getpid());
  target_pass();
}
