// A parent and two children that talk to each other over a unix pair and over UDP while they are captured: every number
// that is sent comes back once, in order.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "target.h"

static void echo(int fd) {
  uint64_t number;
  while (recv(fd, &number, sizeof number, 0) == sizeof number && number != 0) {
    number = mix(number, 5);
    if (send(fd, &number, sizeof number, MSG_NOSIGNAL) != sizeof number) _exit(1);
  }
  _exit(0);
}

static int udp(struct sockaddr_in* name) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  socklen_t size = sizeof *name;
  *name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  CHECK_EQUAL(bind(fd, (struct sockaddr*)name, sizeof *name), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)name, &size), 0);
  return fd;
}

static volatile bool g_stop;
static int g_fds[2];
static volatile uint64_t g_rounds;

static void* talk(void* unused) {
  (void)unused;
  for (uint64_t number = 1; !g_stop; ++number) {
    for (int i = 0; i < 2; ++i) {
      uint64_t answer = 0, text = number;
      CHECK_EQUAL(send(g_fds[i], &text, sizeof text, 0), sizeof text);
      CHECK_EQUAL(recv(g_fds[i], &answer, sizeof answer, 0), sizeof answer);
      if (answer != mix(number, 5)) target_fail("the answer to %llu is wrong on way %d", (unsigned long long)number, i);
    }
    g_rounds = number;
  }
  return NULL;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int pair[2];
  struct sockaddr_in here, there;
  CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  int near = udp(&here), far = udp(&there);
  CHECK_EQUAL(connect(near, (struct sockaddr*)&there, sizeof there), 0);
  CHECK_EQUAL(connect(far, (struct sockaddr*)&here, sizeof here), 0);
  pid_t children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = fork();
    if (children[i] == 0) echo(i == 0 ? pair[1] : far);
  }
  g_fds[0] = pair[0], g_fds[1] = near;
  pthread_t thread = start_thread(talk, NULL);
  target_ready();
  target_wait(NULL);
  uint64_t before = g_rounds;
  for (int i = 0; i < 5000 && g_rounds < before + 10; ++i) sleep_ms(1);
  CHECK(g_rounds >= before + 10);
  g_stop = true;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  uint64_t end = 0;
  for (int i = 0; i < 2; ++i) {
    int status;
    CHECK_EQUAL(send(g_fds[i], &end, sizeof end, 0), sizeof end);
    CHECK_EQUAL(waitpid(children[i], &status, 0), children[i]);
    CHECK_EQUAL(status, 0);
  }
  target_pass();
}
