// Sessions and process groups: a session with two groups of its own, a group in the root's session, a group whose
// leader has died, a session whose leader has died.
#include <sys/prctl.h>
#include <sys/wait.h>

#include "target.h"

static pid_t* g_pids;  // shared: who is who
enum {
  kLeader,
  kOwnGroup,
  kInOwnGroup,
  kGroup,
  kInGroup,
  kDeadGroup,
  kInDeadGroup,
  kDeadSession,
  kInDeadSession,
  kCount
};
static struct Family g_wanted[kCount];

static int member(void* unused) {
  (void)unused;
  pid_t group = getpgrp(), session = getsid(0);
  child_wait(1);
  CHECK_EQUAL(getpgrp(), group);
  CHECK_EQUAL(getsid(0), session);
  return 3;
}

static pid_t in_group(pid_t pid, pid_t group) {
  CHECK_EQUAL(setpgid(pid, group), 0);
  return pid;
}

// `member` looks at its group when it starts, so these are put into theirs by the root afterwards and looked at from
// here.
static int looked_at(void* unused) {
  (void)unused;
  child_wait(1);
  return 3;
}

static int session_leader(void* unused) {
  (void)unused;
  CHECK(setsid() == getpid());
  pid_t own = g_pids[kOwnGroup] = in_group(start_child(looked_at, NULL), 0);
  pid_t inside = g_pids[kInOwnGroup] = in_group(start_child(looked_at, NULL), own);
  child_ready();
  await_release(2);
  CHECK_EQUAL(getsid(0), getpid());
  CHECK_EQUAL(getpgrp(), getpid());
  expect_exit(own, 3);
  expect_exit(inside, 3);
  return 4;
}

static int dying_leader(void* unused) {
  (void)unused;
  CHECK(setsid() == getpid());
  g_pids[kInDeadSession] = start_child(member, NULL);
  return 5;
}

static int ends_at_once(void* unused) {
  (void)unused;
  child_wait(1);
  return 6;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  g_pids = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(g_pids != MAP_FAILED);
  pid_t pids[kCount];
  g_pids[kLeader] = start_child(session_leader, NULL);
  g_pids[kGroup] = start_child(looked_at, NULL);
  in_group(g_pids[kGroup], g_pids[kGroup]);
  g_pids[kInGroup] = in_group(start_child(looked_at, NULL), g_pids[kGroup]);
  pid_t dying = g_pids[kDeadGroup] = start_child(ends_at_once, NULL);
  in_group(dying, dying);
  g_pids[kInDeadGroup] = in_group(start_child(looked_at, NULL), dying);
  CHECK_EQUAL(kill(dying, SIGKILL), 0);
  expect_signal(dying, SIGKILL);
  pid_t gone = g_pids[kDeadSession] = start_child(dying_leader, NULL);
  expect_exit(gone, 5);
  memcpy(pids, g_pids, sizeof pids);
  CHECK_EQUAL(munmap(g_pids, PAGE_SIZE), 0);
  for (int i = 0; i < kCount; ++i)
    if (i != kDeadGroup && i != kDeadSession) g_wanted[i] = family_of(pids[i]);
  CHECK_EQUAL(g_wanted[kInDeadGroup].group, dying);
  CHECK_EQUAL(g_wanted[kInDeadSession].session, gone);
  CHECK_EQUAL(g_wanted[kInDeadSession].parent, getpid());
  CHECK_EQUAL(g_wanted[kOwnGroup].session, pids[kLeader]);
  target_ready();
  target_wait(NULL);

  CHECK_EQUAL(getsid(0), getpid());
  CHECK_EQUAL(getpgrp(), getpid());
  for (int i = 0; i < kCount; ++i) {
    if (i == kDeadGroup || i == kDeadSession) {
      CHECK(kill(pids[i], 0) == -1 && errno == ESRCH);
      CHECK_EQUAL(kill(-pids[i], 0), 0);  // the group is there without its leader
      continue;
    }
    struct Family now = family_of(pids[i]);
    CHECK_EQUAL(now.parent, g_wanted[i].parent);
    CHECK_EQUAL(now.group, g_wanted[i].group);
    CHECK_EQUAL(now.session, g_wanted[i].session);
  }
  pid_t newcomer = start_child(looked_at, NULL);
  CHECK_EQUAL(setpgid(newcomer, dying), 0);  // also a newcomer can still join it
  release(1);
  release(2);
  expect_exit(newcomer, 3);
  expect_exit(pids[kLeader], 4);
  expect_exit(pids[kGroup], 3);
  expect_exit(pids[kInGroup], 3);
  expect_exit(pids[kInDeadGroup], 3);
  expect_exit(pids[kInDeadSession], 3);
  expect_childless();
  target_pass();
}
