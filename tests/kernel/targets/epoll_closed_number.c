// Epoll members whose number has been closed, or taken by another file, while a duplicate keeps them alive; some of the
// numbers are higher than any that is in use, among those that a restore might use itself.
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
  enum { kPipes = 10, kFirst = 30, kStep = 15, kNumbers = 4 };
  int pipes[kPipes][2], high = epoll_create1(0);
  for (int i = 0; i < kPipes; ++i) {
    CHECK_EQUAL(pipe(pipes[i]), 0);
    const int number = kFirst + kStep * (i % kNumbers);
    event = (struct epoll_event){.events = EPOLLIN, .data.u64 = (uint64_t)i};
    CHECK(dup2(pipes[i][0], number) == number && epoll_ctl(high, EPOLL_CTL_ADD, number, &event) == 0 &&
          close(number) == 0);
  }
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
  struct epoll_event all[kPipes];
  for (int i = 0; i < kPipes; ++i) CHECK_EQUAL(write(pipes[i][1], "x", 1), 1);
  CHECK_EQUAL(epoll_wait(high, all, kPipes, 0), kPipes);
  target_pass();
}
