// Multicast groups: of IPv4 on a socket of IPv4, and on one of IPv6, which may join both kinds.
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "target.h"

static struct group_req four_group(const char* last) {
  struct group_req out = {.gr_interface = if_nametoindex("lo")};
  struct sockaddr_in* address = (struct sockaddr_in*)&out.gr_group;
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(0xef000a00u | (uint32_t)atoi(last));  // 239.0.10.x
  return out;
}

static struct group_req six_group(void) {
  struct group_req out = {.gr_interface = if_nametoindex("lo")};
  struct sockaddr_in6* address = (struct sockaddr_in6*)&out.gr_group;
  address->sin6_family = AF_INET6;
  address->sin6_addr.s6_addr[0] = 0xff, address->sin6_addr.s6_addr[1] = 0x01, address->sin6_addr.s6_addr[15] = 0x77;
  return out;
}

/// A socket leaves once what it has joined once.
static void leave(int fd, int level, struct group_req group) {
  CHECK_EQUAL(setsockopt(fd, level, MCAST_LEAVE_GROUP, &group, sizeof group), 0);
  CHECK(setsockopt(fd, level, MCAST_LEAVE_GROUP, &group, sizeof group) == -1);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int four = socket(AF_INET, SOCK_DGRAM, 0), six = socket(AF_INET6, SOCK_DGRAM, 0);
  if (six < 0) target_skip("no IPv6: %s", strerror(errno));
  struct group_req first = four_group("1"), second = four_group("2"), third = six_group();
  CHECK_EQUAL(setsockopt(four, IPPROTO_IP, MCAST_JOIN_GROUP, &first, sizeof first), 0);
  CHECK_EQUAL(setsockopt(six, IPPROTO_IP, MCAST_JOIN_GROUP, &second, sizeof second), 0);
  CHECK_EQUAL(setsockopt(six, IPPROTO_IPV6, MCAST_JOIN_GROUP, &third, sizeof third), 0);
  target_ready();
  target_wait(NULL);
  leave(four, IPPROTO_IP, first);
  leave(six, IPPROTO_IP, second);
  leave(six, IPPROTO_IPV6, third);
  target_pass();
}
