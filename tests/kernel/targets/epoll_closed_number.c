// An epoll member whose number has been closed, and taken by another file, while a duplicate keeps it alive.
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "target.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  int epoll = epoll_create1(0), gone = eventfd(0, EFD_NONBLOCK), taken = eventfd(0, EFD_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
  CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, gone, &event), 0);
  event.data.u64 = 2;
  CHECK_EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, taken, &event), 0);
  int of_gone = dup(gone), of_taken = dup(taken);
  CHECK(of_gone >= 0 && of_taken >= 0 && close(gone) == 0);
  int other = eventfd(0, EFD_NONBLOCK);
  CHECK(dup2(other, taken) == taken);
  target_ready();
  target_wait(NULL);
  uint64_t one = 1;
  CHECK_EQUAL(write(taken, &one, sizeof one), sizeof one);
  CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 0);
  CHECK_EQUAL(write(of_gone, &one, sizeof one), sizeof one);
  CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 1);
  CHECK_EQUAL(event.data.u64, 1);
  CHECK_EQUAL(read(of_gone, &one, sizeof one), sizeof one);
  CHECK_EQUAL(write(of_taken, &one, sizeof one), sizeof one);
  CHECK_EQUAL(epoll_wait(epoll, &event, 1, 0), 1);
  CHECK_EQUAL(event.data.u64, 2);
  target_pass();
}
