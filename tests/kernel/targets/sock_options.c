// Options of sockets of several kinds.
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "target.h"

// Newer than the headers.
enum { kTimestampNew = 63, kTcpRtoMax = 44, kUdpCork = 1, kRecverr4884 = 31, kFlowinfoSend = 33 };

struct option {
  int fd, level, name, value, found;
};

/// Those that an older kernel does not have.
static bool is_new(const struct option* o) { return o->level == IPPROTO_TCP && o->name == kTcpRtoMax; }

int main(int argc, char** argv) {
  target_init(argc, argv);
  int tcp = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET6, SOCK_DGRAM, 0),
      local = socket(AF_UNIX, SOCK_DGRAM, 0);
  struct option options[] = {
      {tcp, SOL_SOCKET, SO_KEEPALIVE, 1, 0},
      {tcp, IPPROTO_TCP, TCP_KEEPIDLE, 77, 0},
      {tcp, IPPROTO_TCP, TCP_KEEPINTVL, 7, 0},
      {tcp, IPPROTO_TCP, TCP_KEEPCNT, 3, 0},
      {tcp, IPPROTO_TCP, TCP_NODELAY, 1, 0},
      {tcp, IPPROTO_TCP, TCP_USER_TIMEOUT, 12345, 0},
      {tcp, IPPROTO_TCP, TCP_CORK, 1, 0},
      {tcp, SOL_SOCKET, SO_OOBINLINE, 1, 0},
      {tcp, SOL_SOCKET, SO_REUSEADDR, 1, 0},
      {tcp, SOL_SOCKET, SO_REUSEPORT, 1, 0},
      {tcp, SOL_SOCKET, SO_RCVBUF, 60000, 0},
      {tcp, SOL_SOCKET, SO_SNDBUF, 70000, 0},
      {tcp, IPPROTO_IP, IP_TOS, 8, 0},
      {tcp, IPPROTO_IP, IP_TTL, 9, 0},
      {tcp, IPPROTO_TCP, TCP_MAXSEG, 900, 0},
      {tcp, IPPROTO_TCP, TCP_FASTOPEN, 5, 0},
      {tcp, IPPROTO_TCP, kTcpRtoMax, 7000, 0},
      {tcp, SOL_SOCKET, kTimestampNew, 1, 0},
      {udp, IPPROTO_UDP, kUdpCork, 1, 0},
      {udp, IPPROTO_IPV6, kRecverr4884, 1, 0},
      {udp, IPPROTO_IPV6, kFlowinfoSend, 1, 0},
      {udp, IPPROTO_IPV6, IPV6_2292PKTINFO, 1, 0},
      {udp, IPPROTO_IPV6, IPV6_V6ONLY, 1, 0},
      {udp, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 5, 0},
      {udp, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1, 0},
      {udp, IPPROTO_IPV6, IPV6_TCLASS, 16, 0},
      {udp, SOL_SOCKET, SO_BROADCAST, 1, 0},
      {udp, SOL_SOCKET, SO_PRIORITY, 4, 0},
      {udp, SOL_SOCKET, SO_RCVLOWAT, 12, 0},
      {udp, SOL_SOCKET, SO_WIFI_STATUS, 1, 0},
      {udp, SOL_SOCKET, SO_NOFCS, 1, 0},
      {local, SOL_SOCKET, SO_PASSCRED, 1, 0},
      {local, SOL_SOCKET, SO_PEEK_OFF, 3, 0},
  };
  enum { kCount = sizeof options / sizeof options[0] };
  for (int i = 0; i < kCount; ++i) {
    struct option* o = &options[i];
    socklen_t size = sizeof o->found;
    if (setsockopt(o->fd, o->level, o->name, &o->value, sizeof o->value) != 0 && !is_new(o))
      target_fail("option %d (level %d, name %d): errno %d", i, o->level, o->name, errno);
    if (getsockopt(o->fd, o->level, o->name, &o->found, &size) != 0 && !is_new(o))
      target_fail("option %d (level %d, name %d): errno %d", i, o->level, o->name, errno);
  }
  unsigned char key[16] = "sixteen letters", found_key[16];
  CHECK_EQUAL(setsockopt(tcp, IPPROTO_TCP, TCP_FASTOPEN_KEY, key, sizeof key), 0);
  int raw = socket(AF_INET, SOCK_RAW, IPPROTO_IGMP), on = 1, budget = 16;
  const bool alerted = raw >= 0 && setsockopt(raw, IPPROTO_IP, IP_ROUTER_ALERT, &on, sizeof on) == 0;
  // No call tells the budget.
  if (setsockopt(udp, SOL_SOCKET, SO_PREFER_BUSY_POLL, &on, sizeof on) == 0)
    CHECK_EQUAL(setsockopt(udp, SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget, sizeof budget), 0);
  struct linger linger = {1, 7};
  struct timeval wait = {2, 300000};
  struct sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, 100}};
  struct sock_fprog program = {1, code};
  CHECK_EQUAL(setsockopt(tcp, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
  CHECK_EQUAL(setsockopt(tcp, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait), 0);
  CHECK_EQUAL(setsockopt(udp, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
  target_ready();
  target_wait(NULL);
  for (int i = 0; i < kCount; ++i) {
    struct option* o = &options[i];
    int now = 0;
    socklen_t size = sizeof now;
    CHECK(getsockopt(o->fd, o->level, o->name, &now, &size) == 0 || is_new(o));
    if (now != o->found)
      target_fail("option %d (level %d, name %d) is %d, not %d", i, o->level, o->name, now, o->found);
  }
  socklen_t size = sizeof linger;
  CHECK_EQUAL(getsockopt(tcp, SOL_SOCKET, SO_LINGER, &linger, &size), 0);
  CHECK_EQUAL(linger.l_linger, 7);
  size = sizeof wait;
  CHECK_EQUAL(getsockopt(tcp, SOL_SOCKET, SO_RCVTIMEO, &wait, &size), 0);
  CHECK(wait.tv_sec == 2 && wait.tv_usec == 300000);
  size = 1;
  CHECK_EQUAL(getsockopt(udp, SOL_SOCKET, SO_GET_FILTER, code, &size), 0);
  CHECK_EQUAL(size, 1);
  CHECK_EQUAL(code[0].k, 100);
  size = sizeof found_key;
  CHECK_EQUAL(getsockopt(tcp, IPPROTO_TCP, TCP_FASTOPEN_KEY, found_key, &size), 0);
  CHECK(size == sizeof key && memcmp(key, found_key, sizeof key) == 0);
  size = sizeof on;
  // Older kernels do not tell it.
  if (alerted && getsockopt(raw, IPPROTO_IP, IP_ROUTER_ALERT, &on, &size) == 0) CHECK_EQUAL(on, 1);
  target_pass();
}
