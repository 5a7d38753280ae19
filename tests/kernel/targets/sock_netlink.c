// A netlink socket: port number, groups, options, and answers to new questions.
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE), group = RTNLGRP_NEXTHOP, on = 1;
  struct sockaddr_nl name = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_IPV4_MROUTE};
  CHECK_EQUAL(bind(fd, (struct sockaddr*)&name, sizeof name), 0);
  CHECK_EQUAL(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group), 0);
  CHECK_EQUAL(setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on), 0);
  socklen_t size = sizeof name;
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&name, &size), 0);
  target_ready();
  target_wait(NULL);
  struct sockaddr_nl now;
  size = sizeof now;
  CHECK_EQUAL(getsockname(fd, (struct sockaddr*)&now, &size), 0);
  CHECK_EQUAL(now.nl_pid, name.nl_pid);
  CHECK_EQUAL(now.nl_groups, name.nl_groups);
  uint32_t groups[8] = {0};
  size = sizeof groups;
  CHECK_EQUAL(getsockopt(fd, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, groups, &size), 0);
  CHECK((groups[(RTNLGRP_NEXTHOP - 1) / 32] >> ((RTNLGRP_NEXTHOP - 1) % 32) & 1) != 0);
  on = 0, size = sizeof on;
  CHECK_EQUAL(getsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, &size), 0);
  CHECK_EQUAL(on, 1);
  struct {
    struct nlmsghdr head;
    struct rtgenmsg body;
  } ask = {{sizeof ask, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {AF_UNSPEC}};
  static char answer[65536];
  CHECK_EQUAL(send(fd, &ask, sizeof ask, 0), sizeof ask);
  CHECK(recv(fd, answer, sizeof answer, 0) > (ssize_t)sizeof(struct nlmsghdr));
  CHECK_EQUAL(((struct nlmsghdr*)answer)->nlmsg_type, RTM_NEWLINK);
  target_pass();
}
