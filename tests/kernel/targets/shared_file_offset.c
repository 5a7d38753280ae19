// One open file of two processes: its offset and flags move together, those of another open file of the same path do
// not.
#include "target.h"

static int g_shared, g_dup, g_apart;

static int child(void* unused) {
  (void)unused;
  CHECK_EQUAL(close(g_dup), 0);
  int moved = dup2(g_shared, 300);
  CHECK_EQUAL(moved, 300);
  CHECK_EQUAL(close(g_shared), 0);
  child_wait(1);
  char text[8];
  CHECK_EQUAL(lseek(300, 0, SEEK_CUR), 100);
  CHECK_EQUAL(read(300, text, 8), 8);
  CHECK_EQUAL(fcntl(300, F_SETFL, O_NONBLOCK), 0);
  CHECK_EQUAL(lseek(g_apart, 777, SEEK_SET), 777);
  return 1;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  char content[4096];
  fill_words(content, sizeof content, 12);
  g_shared = open("file", O_CREAT | O_RDWR, 0600);
  g_apart = open("file", O_RDONLY);
  CHECK_EQUAL(write(g_shared, content, sizeof content), sizeof content);
  CHECK_EQUAL(lseek(g_shared, 100, SEEK_SET), 100);
  g_dup = dup(g_shared);
  int after_fork;
  pid_t below = start_child(child, NULL);
  after_fork = open("file", O_RDWR);
  CHECK(g_dup >= 0 && g_apart >= 0 && after_fork >= 0);
  target_ready();
  target_wait(NULL);
  expect_same_file(g_shared, below, 300, true);
  expect_same_file(g_dup, below, 300, true);
  expect_same_file(g_apart, below, g_apart, true);
  expect_same_file(g_apart, below, 300, false);
  expect_same_file(after_fork, getpid(), g_shared, false);
  release(1);
  expect_exit(below, 1);
  CHECK_EQUAL(lseek(g_shared, 0, SEEK_CUR), 108);
  CHECK_EQUAL(lseek(g_dup, 0, SEEK_CUR), 108);
  CHECK_EQUAL(lseek(g_apart, 0, SEEK_CUR), 777);
  CHECK_EQUAL(lseek(after_fork, 0, SEEK_CUR), 0);
  CHECK_EQUAL(fcntl(g_dup, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  CHECK_EQUAL(fcntl(after_fork, F_GETFL) & O_NONBLOCK, 0);
  target_pass();
}
