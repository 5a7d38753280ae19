// Socket pairs of datagrams and of records: borders between messages stay, empty messages count, buffers stay as large.
#include <sys/socket.h>

#include "target.h"

static const size_t kSizes[] = {5, 0, 1000, 1, 60000, 0};
enum { kCount = sizeof kSizes / sizeof kSizes[0] };
static uint8_t g_content[1 << 16];

static void set_up(int type, int pair[2]) {
  int size = 500000;
  CHECK_EQUAL(socketpair(AF_UNIX, type, 0, pair), 0);
  CHECK_EQUAL(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
  for (int i = 0; i < kCount; ++i) CHECK_EQUAL(send(pair[0], g_content + i, kSizes[i], 0), kSizes[i]);
  CHECK_EQUAL(send(pair[1], "back", 4, 0), 4);
}

static void check(int pair[2], int size) {
  static uint8_t found[1 << 16];
  int now;
  socklen_t length = sizeof now;
  for (int i = 0; i < kCount; ++i) {
    CHECK_EQUAL(recv(pair[1], found, sizeof found, MSG_DONTWAIT), kSizes[i]);
    if (memcmp(found, g_content + i, kSizes[i]) != 0) target_fail("message %d has other bytes", i);
  }
  CHECK(recv(pair[1], found, sizeof found, MSG_DONTWAIT) == -1 && errno == EAGAIN);
  CHECK_EQUAL(recv(pair[0], found, sizeof found, MSG_DONTWAIT), 4);
  CHECK_EQUAL(getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &now, &length), 0);
  CHECK_EQUAL(now, size);
  CHECK_EQUAL(send(pair[1], "on", 2, 0), 2);
  CHECK_EQUAL(recv(pair[0], found, sizeof found, MSG_DONTWAIT), 2);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  fill_words(g_content, sizeof g_content, 12);
  int datagrams[2], records[2], size;
  socklen_t length = sizeof size;
  set_up(SOCK_DGRAM, datagrams);
  set_up(SOCK_SEQPACKET, records);
  CHECK_EQUAL(getsockopt(datagrams[0], SOL_SOCKET, SO_SNDBUF, &size, &length), 0);
  target_ready();
  target_wait(NULL);
  check(datagrams, size);
  check(records, size);
  target_pass();
}
