// A packet socket: what was set on it, and what it asked of the interface.
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/socket.h>

#include "target.h"

static const struct {
  int option, value;
} kOptions[] = {
    {PACKET_RESERVE, 8}, {PACKET_AUXDATA, 1}, {PACKET_ORIGDEV, 1}, {PACKET_IGNORE_OUTGOING, 1},
    {PACKET_VERSION, TPACKET_V2}, {PACKET_VNET_HDR, 1}, {PACKET_TX_HAS_OFF, 1},
};
enum { kCount = sizeof kOptions / sizeof kOptions[0] };

static bool interface_receives(const struct packet_mreq* group) {
  char wanted[16], line[200];
  for (int i = 0; i < 6; ++i) snprintf(wanted + 2 * i, 3, "%02x", group->mr_address[i]);
  FILE* list = fopen("/proc/net/dev_mcast", "re");
  bool found = false;
  while (fgets(line, sizeof line, list) != NULL) found = found || strstr(line, wanted) != NULL;
  fclose(list);
  return found;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int fd = socket(AF_PACKET, SOCK_RAW, 0), found[kCount];
  if (fd < 0) target_skip("no right to make packet sockets (errno %d)", errno);
  for (int i = 0; i < kCount; ++i) {
    socklen_t size = sizeof found[i];
    CHECK_EQUAL(setsockopt(fd, SOL_PACKET, kOptions[i].option, &kOptions[i].value, sizeof kOptions[i].value), 0);
    CHECK_EQUAL(getsockopt(fd, SOL_PACKET, kOptions[i].option, &found[i], &size), 0);
  }
  int threshold = 1000;
  struct packet_mreq promiscuous = {.mr_ifindex = (int)if_nametoindex("lo"), .mr_type = PACKET_MR_PROMISC};
  struct packet_mreq group = {
      .mr_ifindex = promiscuous.mr_ifindex,
      .mr_type = PACKET_MR_MULTICAST,
      .mr_alen = 6,
      .mr_address = {1, 0, 0x5e, (uint8_t)(getpid() >> 16), (uint8_t)(getpid() >> 8), (uint8_t)getpid()}};
  CHECK_EQUAL(setsockopt(fd, SOL_PACKET, PACKET_COPY_THRESH, &threshold, sizeof threshold), 0);
  CHECK_EQUAL(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous), 0);
  for (int i = 0; i < 2; ++i) CHECK_EQUAL(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &group, sizeof group), 0);
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < kCount; ++i) {
    int now = -1;
    socklen_t size = sizeof now;
    CHECK_EQUAL(getsockopt(fd, SOL_PACKET, kOptions[i].option, &now, &size), 0);
    if (now != found[i]) target_fail("option %d is %d, not %d", kOptions[i].option, now, found[i]);
  }
  for (int left = 2; left > 0; --left) {
    CHECK_EQUAL(interface_receives(&group), true);
    CHECK_EQUAL(setsockopt(fd, SOL_PACKET, PACKET_DROP_MEMBERSHIP, &group, sizeof group), 0);
  }
  CHECK_EQUAL(interface_receives(&group), false);
  target_pass();
}
