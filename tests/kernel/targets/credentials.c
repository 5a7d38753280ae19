// A program that gave up root: different real, effective and saved ids, supplementary groups, a few capabilities in
// each set, securebits; and a second thread whose filesystem uid is its own.
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

#include "target.h"

static volatile int g_phase;
static struct __user_cap_data_struct g_wanted[2];

static void get_capabilities(struct __user_cap_data_struct* data) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  CHECK_EQUAL(syscall(SYS_capget, &header, data), 0);
}

static void* work(void* unused) {
  setfsuid(60003);
  CHECK_EQUAL(setfsuid((uid_t)-1), 60003);
  g_phase = 1;
  while (g_phase != 2) sleep_ms(2);
  CHECK_EQUAL(setfsuid((uid_t)-1), 60003);
  uid_t real, effective, saved;
  CHECK_EQUAL(getresuid(&real, &effective, &saved), 0);
  CHECK(real == 60001 && effective == 60002 && saved == 60003);
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (getuid() != 0) target_skip("needs root, to give it up");
  const gid_t groups[] = {61001, 61002, 7};
  CHECK_EQUAL(setgroups(3, groups), 0);
  CHECK_EQUAL(setresgid(60011, 60012, 60013), 0);
  CHECK_EQUAL(prctl(PR_SET_SECUREBITS, SECBIT_KEEP_CAPS | SECBIT_NOROOT_LOCKED), 0);
  CHECK_EQUAL(prctl(PR_CAPBSET_DROP, CAP_SYS_MODULE), 0);
  CHECK_EQUAL(setresuid(60001, 60002, 60003), 0);
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  memset(data, 0, sizeof data);
  data[0].permitted = 1u << CAP_NET_BIND_SERVICE | 1u << CAP_KILL;
  data[0].effective = 1u << CAP_KILL;
  data[0].inheritable = 1u << CAP_NET_BIND_SERVICE;
  CHECK_EQUAL(syscall(SYS_capset, &header, data), 0);
  CHECK_EQUAL(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_BIND_SERVICE, 0, 0), 0);
  get_capabilities(g_wanted);
  int securebits = prctl(PR_GET_SECUREBITS);
  pthread_t thread = start_thread(work, NULL);
  while (g_phase != 1) sleep_ms(1);
  target_ready();
  target_wait(NULL);
  uid_t real, effective, saved;
  CHECK_EQUAL(getresuid(&real, &effective, &saved), 0);
  CHECK(real == 60001 && effective == 60002 && saved == 60003);
  CHECK_EQUAL(getresgid(&real, &effective, &saved), 0);
  CHECK(real == 60011 && effective == 60012 && saved == 60013);
  gid_t found[8];
  CHECK_EQUAL(getgroups(8, found), 3);
  for (int i = 0; i < 3; ++i) CHECK(found[i] == 7 || found[i] == 61001 || found[i] == 61002);
  get_capabilities(data);
  CHECK(memcmp(data, g_wanted, sizeof data) == 0);
  CHECK_EQUAL(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_NET_BIND_SERVICE, 0, 0), 1);
  CHECK_EQUAL(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_KILL, 0, 0), 0);
  CHECK_EQUAL(prctl(PR_CAPBSET_READ, CAP_SYS_MODULE), 0);
  CHECK_EQUAL(prctl(PR_CAPBSET_READ, CAP_CHOWN), 1);
  CHECK_EQUAL(prctl(PR_GET_SECUREBITS), securebits);
  CHECK(open("/etc/shadow", O_RDONLY) == -1);
  g_phase = 2;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  target_pass();
}
