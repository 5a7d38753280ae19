// So many descriptors that they are compared and made side by side: of one file, a third of them sharing an open file
// description with another; and pairs of sockets, each with a byte on its way.
#include <sys/resource.h>
#include <sys/socket.h>

#include "target.h"

enum { kFiles = 600, kPairs = 1040 };
static int g_files[kFiles], g_pairs[kPairs][2];

/// Each third one is a duplicate of one before it, anywhere.
static int original_of(int i) {
  if (i % 3 != 2) return i;
  const int chosen = (int)(mix((uint64_t)i, 7) % (uint64_t)i);
  return chosen % 3 == 2 ? chosen - 1 : chosen;
}
static int offset_of(int i) { return 100 + original_of(i); }

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct rlimit limit;
  CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  if (limit.rlim_max < 4096 || setrlimit(RLIMIT_NOFILE, &limit) != 0) target_skip("too few descriptors");
  CHECK_EQUAL(close(open("file", O_CREAT | O_WRONLY, 0600)), 0);
  for (int i = 0; i < kFiles; ++i) {
    g_files[i] = original_of(i) == i ? open("file", O_RDWR) : dup(g_files[original_of(i)]);
    CHECK(g_files[i] >= 0);
  }
  for (int i = 0; i < kPairs; ++i) {
    CHECK_EQUAL(socketpair(AF_UNIX, i % 2 == 0 ? SOCK_STREAM : SOCK_SEQPACKET, 0, g_pairs[i]), 0);
    const uint16_t number = (uint16_t)i;
    CHECK_EQUAL(write(g_pairs[i][1], &number, sizeof number), sizeof number);
  }
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < kFiles; ++i) {
    if (original_of(i) == i) CHECK_EQUAL(lseek(g_files[i], offset_of(i), SEEK_SET), offset_of(i));
  }
  for (int i = 0; i < kFiles; ++i) CHECK_EQUAL(lseek(g_files[i], 0, SEEK_CUR), offset_of(i));
  for (int i = 0; i < kPairs; ++i) {
    uint16_t number = 0;
    CHECK_EQUAL(read(g_pairs[i][0], &number, sizeof number), sizeof number);
    CHECK_EQUAL(number, i);
    struct ucred maker = {0, 0, 0};
    socklen_t size = sizeof maker;
    CHECK_EQUAL(getsockopt(g_pairs[i][0], SOL_SOCKET, SO_PEERCRED, &maker, &size), 0);
    CHECK_EQUAL(maker.pid, getpid());
  }
  target_pass();
}
