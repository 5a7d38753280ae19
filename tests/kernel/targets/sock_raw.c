// A raw IP socket and a packet socket.
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <sys/socket.h>

#include "target.h"

enum { kRaw = 255, kIcmpFilter = 1 };  // <linux/icmp.h> does not go with <net/if.h>
enum { kProtocol = 253, kEthernet = 0x88b5 };  // both set aside for experiments

int main(int argc, char** argv) {
  target_init(argc, argv);
  int raw = socket(AF_INET, SOCK_RAW, kProtocol), packet = socket(AF_PACKET, SOCK_DGRAM, 0), ttl = 17;
  if (raw < 0 || packet < 0) target_skip("no right to make raw sockets (errno %d)", errno);
  struct sockaddr_ll where = {
      .sll_family = AF_PACKET, .sll_protocol = htons(kEthernet), .sll_ifindex = (int)if_nametoindex("lo")};
  CHECK_EQUAL(bind(packet, (struct sockaddr*)&where, sizeof where), 0);
  CHECK_EQUAL(setsockopt(raw, IPPROTO_IP, IP_TTL, &ttl, sizeof ttl), 0);
  // What they let through, one bit a type of ICMP.
  uint32_t four = 0x12345678, four_now;
  struct icmp6_filter six, six_now;
  int icmp = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), icmp6 = socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6);
  memset(&six, 0x5a, sizeof six);
  CHECK_EQUAL(setsockopt(icmp, kRaw, kIcmpFilter, &four, sizeof four), 0);
  CHECK_EQUAL(setsockopt(icmp6, IPPROTO_ICMPV6, ICMP6_FILTER, &six, sizeof six), 0);
  int connected = socket(AF_INET, SOCK_RAW, kProtocol), connected6 = socket(AF_INET6, SOCK_RAW, kProtocol);
  struct sockaddr_in there = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  struct sockaddr_in6 there6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  CHECK_EQUAL(connect(connected, (struct sockaddr*)&there, sizeof there), 0);
  CHECK_EQUAL(connect(connected6, (struct sockaddr*)&there6, sizeof there6), 0);
  target_ready();
  target_wait(NULL);
  int value = 0;
  socklen_t size = sizeof value;
  CHECK_EQUAL(getsockopt(raw, SOL_SOCKET, SO_PROTOCOL, &value, &size), 0);
  CHECK_EQUAL(value, kProtocol);
  CHECK_EQUAL(getsockopt(raw, IPPROTO_IP, IP_TTL, &value, &size), 0);
  CHECK_EQUAL(value, 17);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  CHECK_EQUAL(sendto(raw, "ping", 4, 0, (struct sockaddr*)&to, sizeof to), 4);
  char frame[64];
  CHECK_EQUAL(recv(raw, frame, sizeof frame, 0), 24);
  CHECK_EQUAL(frame[8], 17);
  size = sizeof where;
  CHECK_EQUAL(getsockname(packet, (struct sockaddr*)&where, &size), 0);
  CHECK_EQUAL(where.sll_protocol, htons(kEthernet));
  CHECK_EQUAL(where.sll_ifindex, if_nametoindex("lo"));
  where.sll_halen = 6;
  CHECK_EQUAL(sendto(packet, "frame", 5, 0, (struct sockaddr*)&where, sizeof where), 5);
  CHECK_EQUAL(recv(packet, frame, sizeof frame, 0), 5);
  size = sizeof four_now;
  CHECK_EQUAL(getsockopt(icmp, kRaw, kIcmpFilter, &four_now, &size), 0);
  CHECK_EQUAL(four_now, four);
  size = sizeof six_now;
  CHECK_EQUAL(getsockopt(icmp6, IPPROTO_ICMPV6, ICMP6_FILTER, &six_now, &size), 0);
  CHECK_EQUAL(memcmp(&six_now, &six, sizeof six), 0);
  CHECK_EQUAL(send(connected, "pong", 4, 0), 4);
  CHECK_EQUAL(send(connected6, "pong", 4, 0), 4);
  target_pass();
}
