// A session on a terminal whose master the parent holds: the leader, a foreground group and a process in the
// background. The keys reach the foreground alone, /dev/tty leads to the terminal, a change of size is told.
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>

#include "target.h"

enum { kLeader, kFront, kBack, kRoles };

struct shared {
  pid_t pid[kRoles];
  volatile int interrupts[kRoles], resizes[kRoles];
  volatile int asked, answered[kRoles];
  char failure[256];
};
static struct shared* g_shared;
static int g_role;

static void on_signal(int signo) {
  volatile int* counts = signo == SIGINT ? g_shared->interrupts : g_shared->resizes;
  ++counts[g_role];
}

#define CHILD_CHECK(condition)                                                                                    \
  do {                                                                                                            \
    if (!(condition))                                                                                             \
      snprintf(g_shared->failure, sizeof g_shared->failure, "role %d: %s (errno %d)", g_role, #condition, errno); \
  } while (0)

/// Goes on until it is asked, then looks at the terminal from inside.
static _Noreturn void member(int role, int slave, int by_name) {
  g_role = role;
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGWINCH, &action, NULL);
  g_shared->pid[role] = getpid();
  while (g_shared->asked == 0) sleep_ms(2);
  CHILD_CHECK(tcgetsid(slave) == g_shared->pid[kLeader]);
  CHILD_CHECK(tcgetpgrp(slave) == g_shared->pid[kFront]);
  CHILD_CHECK(tcgetpgrp(by_name) == g_shared->pid[kFront]);
  CHILD_CHECK(getsid(0) == g_shared->pid[kLeader]);
  CHILD_CHECK(getpgrp() == g_shared->pid[role]);
  int again = open("/dev/tty", O_RDWR);
  CHILD_CHECK(again >= 0);
  CHILD_CHECK(write(again, "x", 1) == 1);
  g_shared->answered[role] = 1;
  for (;;) pause();
}

static pid_t spawn(int role, int slave, int by_name) {
  pid_t pid = fork();
  if (pid < 0) _exit(3);
  if (pid == 0) {
    setpgid(0, 0);
    member(role, slave, by_name);
  }
  setpgid(pid, pid);
  return pid;
}

static _Noreturn void lead(int slave) {
  setsid();
  if (ioctl(slave, TIOCSCTTY, 0) != 0) _exit(3);
  int by_name = open("/dev/tty", O_RDWR | O_CLOEXEC);
  pid_t front = spawn(kFront, slave, by_name);
  spawn(kBack, slave, by_name);
  signal(SIGTTOU, SIG_IGN);
  if (tcsetpgrp(slave, front) != 0) _exit(3);
  member(kLeader, slave, by_name);
}

static void await(volatile int* value, const char* what) {
  for (int i = 0; i < 2000 && *value == 0; ++i) sleep_ms(1);
  if (g_shared->failure[0] != 0) target_fail("%s", g_shared->failure);
  if (*value == 0) target_fail("waited in vain for %s", what);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_shared = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_shared != MAP_FAILED);
  int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), unlocked = 0;
  if (master < 0) target_skip("no /dev/ptmx");
  CHECK_EQUAL(ioctl(master, TIOCSPTLCK, &unlocked), 0);
  int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
  CHECK(slave >= 0);
  pid_t leader = fork();
  CHECK(leader >= 0);
  if (leader == 0) {
    close(master);
    lead(slave);
  }
  CHECK_EQUAL(close(slave), 0);
  pid_t group = 0;
  for (int i = 0; i < 2000 && (group == 0 || group != g_shared->pid[kFront] || g_shared->pid[kBack] == 0); ++i) {
    sleep_ms(1);
    if (ioctl(master, TIOCGPGRP, &group) != 0) group = 0;
  }
  CHECK(group == g_shared->pid[kFront] && g_shared->pid[kBack] != 0);
  target_ready();
  target_wait(NULL);

  CHECK_EQUAL(waitpid(leader, NULL, WNOHANG), 0);
  CHECK_EQUAL(write(master, "\3", 1), 1);
  await(&g_shared->interrupts[kFront], "the interrupt of the foreground");
  struct winsize size = {.ws_row = 1, .ws_col = 2};
  CHECK_EQUAL(ioctl(master, TIOCSWINSZ, &size), 0);
  await(&g_shared->resizes[kFront], "the news of the size");
  CHECK_EQUAL(g_shared->interrupts[kLeader] + g_shared->interrupts[kBack], 0);
  CHECK_EQUAL(g_shared->interrupts[kFront], 1);
  g_shared->asked = 1;
  for (int role = 0; role < kRoles; ++role) await(&g_shared->answered[role], "an answer");
  if (g_shared->failure[0] != 0) target_fail("%s", g_shared->failure);
  // Nobody else would wait for the leader's children.
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  for (int role = kFront; role < kRoles; ++role) kill(g_shared->pid[role], SIGKILL);
  CHECK_EQUAL(kill(leader, SIGKILL), 0);
  for (int role = 0; role < kRoles; ++role) CHECK(waitpid(-1, NULL, 0) > 0);
  target_pass();
}
