// Unread UDP datagrams: of the largest size, and several that the kernel has put together (UDP_GRO), which come apart
// as they were sent.
#include <netinet/in.h>
#include <sys/socket.h>

#include "target.h"

enum { kLargest = 65507, kPart = 1000, kParts = 5, kLast = 300, kUdpSegment = 103, kUdpGro = 104 };

static uint8_t g_content[kLargest], g_found[kLargest + 1];

static int receiver_of(int sender) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof name;
  CHECK_EQUAL(bind(fd, (struct sockaddr*)&name, sizeof name), 0);
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&name, &size), 0);
  CHECK_EQUAL(connect(sender, (struct sockaddr*)&name, size), 0);
  return fd;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  fill_words(g_content, sizeof g_content, 5);
  const int size = kPart, on = 1, total = kPart * (kParts - 1) + kLast, room = 1 << 20;
  int one = socket(AF_INET, SOCK_DGRAM, 0), many = socket(AF_INET, SOCK_DGRAM, 0);
  int largest = receiver_of(one), together = receiver_of(many);
  CHECK_EQUAL(setsockopt(one, SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
  CHECK_EQUAL(send(one, g_content, kLargest, 0), kLargest);
  CHECK_EQUAL(setsockopt(many, IPPROTO_UDP, kUdpSegment, &size, sizeof size), 0);
  CHECK_EQUAL(setsockopt(together, IPPROTO_UDP, kUdpGro, &on, sizeof on), 0);
  CHECK_EQUAL(send(many, g_content, (size_t)total, 0), total);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(recv(largest, g_found, sizeof g_found, MSG_DONTWAIT), kLargest);
  CHECK_EQUAL(memcmp(g_found, g_content, kLargest), 0);
  for (int at = 0; at < total;) {
    char control[64];
    struct iovec part = {g_found, sizeof g_found};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    const ssize_t got = recvmsg(together, &message, MSG_DONTWAIT);
    CHECK(got > 0);
    const struct cmsghdr* head = CMSG_FIRSTHDR(&message);
    const bool parts = head != NULL && head->cmsg_level == IPPROTO_UDP && head->cmsg_type == kUdpGro;
    const int wanted = total - at < kPart ? total - at : kPart;
    if (!parts && got != wanted) target_fail("a datagram of %zd bytes, not %d", got, wanted);
    CHECK_EQUAL(memcmp(g_found, g_content + at, (size_t)got), 0);
    at += (int)got;
  }
  target_pass();
}
