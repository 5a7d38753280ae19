// The nice value of a session among sessions (/proc/PID/autogroup), of sessions that the tree made.
#include "target.h"

enum { kNice = 7 };

static int nice_of_session(void) {
  char text[64] = "";
  int fd = open("/proc/self/autogroup", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  CHECK(read(fd, text, sizeof text - 1) >= 0);
  close(fd);
  const char* word = strstr(text, " nice ");
  return word == NULL ? -1 : atoi(word + strlen(" nice "));
}

static void weigh_session(int nice) {
  char text[16];
  int fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  snprintf(text, sizeof text, "%d", nice);
  while (write(fd, text, strlen(text)) < 0) {  // others than root may do so ten times a second
    CHECK_EQUAL(errno, EAGAIN);
    sleep_ms(20);
  }
  close(fd);
}

static int member(void* unused) {
  (void)unused;
  child_wait(2);
  CHECK_EQUAL(nice_of_session(), kNice);
  return 3;
}

static int leader(void* unused) {
  (void)unused;
  CHECK(setsid() == getpid());
  weigh_session(kNice);
  pid_t child = start_child(member, NULL);
  child_wait(1);
  CHECK_EQUAL(nice_of_session(), kNice);
  release(2);
  expect_exit(child, 3);
  return 4;
}

static int usual(void* unused) {
  (void)unused;
  CHECK(setsid() == getpid());
  child_wait(1);
  CHECK_EQUAL(nice_of_session(), 0);
  return 5;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  if (access("/proc/self/autogroup", W_OK) != 0) target_skip("/proc/self/autogroup: %s", strerror(errno));
  pid_t weighed = start_child(leader, NULL), other = start_child(usual, NULL);
  target_ready();
  target_wait(NULL);
  release(1);
  expect_exit(weighed, 4);
  expect_exit(other, 5);
  target_pass();
}
