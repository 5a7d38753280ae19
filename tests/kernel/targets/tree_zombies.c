// Zombies: by exit, by signal, of another user, with a name and a group of their own, below a child. Their ends were
// reported once, and must not be reported again.
#include <sys/prctl.h>
#include <sys/wait.h>

#include "target.h"

enum { kUser = 4321 };
static volatile sig_atomic_t g_ends;

static void on_child(int number) {
  (void)number;
  ++g_ends;
}

static int exits(void* status) {
  CHECK_EQUAL(prctl(PR_SET_NAME, "was (a) worker"), 0);
  return *(int*)status;
}

static int is_killed(void* unused) {
  (void)unused;
  for (;;) sleep_ms(1000);
  return 0;
}

static int of_another_user(void* unused) {
  (void)unused;
  CHECK_EQUAL(setpgid(0, 0), 0);
  if (getuid() == 0) CHECK_EQUAL(setresuid(kUser, kUser, kUser), 0);
  return 9;
}

static pid_t start_zombie(int (*body)(void*), void* argument) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(body(argument));
  if (body == is_killed) CHECK_EQUAL(kill(child, *(int*)argument), 0);
  wait_state(child, 'Z');
  return child;
}

static int has_a_zombie(void* unused) {
  (void)unused;
  int status = 66;
  pid_t below = start_zombie(exits, &status);
  child_wait(1);
  CHECK_EQUAL(family_of(below).parent, getpid());
  expect_exit(below, 66);
  expect_childless();
  return 8;
}

static void expect_info(pid_t child, int code, int status, uid_t user) {
  siginfo_t info;
  CHECK_EQUAL(waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT), 0);
  CHECK_EQUAL(info.si_pid, child);
  CHECK_EQUAL(info.si_code, code);
  CHECK_EQUAL(info.si_status, status);
  CHECK_EQUAL(info.si_uid, user);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int zero = 0, seven = 7, term = SIGTERM, kills = SIGKILL;
  struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
  CHECK_EQUAL(sigaction(SIGCHLD, &action, NULL), 0);
  pid_t well = start_zombie(exits, &zero), badly = start_zombie(exits, &seven), ended = start_zombie(is_killed, &term),
        killed = start_zombie(is_killed, &kills), other = start_zombie(of_another_user, NULL);
  pid_t parent = start_child(has_a_zombie, NULL);
  int ends = g_ends;
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(g_ends, ends);
  const pid_t all[] = {well, badly, ended, killed, other};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    struct Family family = family_of(all[i]);
    CHECK_EQUAL(family.state, 'Z');
    CHECK_EQUAL(family.parent, getpid());
    CHECK_EQUAL(family.group, all[i] == other ? other : getpgrp());
    CHECK_EQUAL(family.session, getsid(0));
  }
  char path[64], name[32] = "";
  snprintf(path, sizeof path, "/proc/%d/status", badly);
  CHECK(proc_field(path, "Name", name, sizeof name) && strcmp(name, "was (a) worker") == 0);
  expect_info(well, CLD_EXITED, 0, getuid());
  expect_info(badly, CLD_EXITED, 7, getuid());
  expect_info(ended, CLD_KILLED, SIGTERM, getuid());
  expect_info(killed, CLD_KILLED, SIGKILL, getuid());
  expect_info(other, CLD_EXITED, 9, getuid() == 0 ? kUser : getuid());
  expect_exit(well, 0);
  expect_exit(badly, 7);
  expect_signal(ended, SIGTERM);
  expect_signal(killed, SIGKILL);
  expect_exit(other, 9);
  release(1);
  expect_exit(parent, 8);
  expect_childless();
  target_pass();
}
