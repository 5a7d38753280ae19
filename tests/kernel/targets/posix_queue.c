// POSIX message queues: one that was unlinked, with messages of several priorities; one with a name, empty.
#include <mqueue.h>
#include <sys/stat.h>

#include "target.h"

static void expect(mqd_t queue, const char* text, unsigned priority) {
  char found[64] = "";
  unsigned with = 0;
  ssize_t size = mq_receive(queue, found, sizeof found, &with);
  if (size != (ssize_t)strlen(text) || memcmp(found, text, strlen(text)) != 0 || with != priority)
    target_fail("message \"%s\" (%zd bytes, priority %u), not \"%s\"", found, size, with, text);
}

static void send(mqd_t queue, const char* text, unsigned priority) {
  CHECK_EQUAL(mq_send(queue, text, strlen(text), priority), 0);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  char unlinked_name[64], name[64];
  snprintf(unlinked_name, sizeof unlinked_name, "/ckpt-unlinked-%d", getpid());
  snprintf(name, sizeof name, "/ckpt-named-%d", getpid());
  struct mq_attr attributes = {.mq_maxmsg = 7, .mq_msgsize = 64}, seen;
  mqd_t unlinked = mq_open(unlinked_name, O_CREAT | O_EXCL | O_RDWR | O_NONBLOCK, 0600, &attributes);
  if (unlinked < 0) target_skip("no POSIX queues: %s", strerror(errno));
  mqd_t reader = mq_open(unlinked_name, O_RDONLY | O_NONBLOCK);
  mqd_t named = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0640, &attributes);
  CHECK(reader >= 0 && named >= 0);
  CHECK_EQUAL(mq_unlink(unlinked_name), 0);
  send(unlinked, "one", 1);
  send(unlinked, "urgent", 30);
  send(unlinked, "one more", 1);
  send(unlinked, "", 0);
  target_ready();
  target_wait(NULL);

  CHECK_EQUAL(mq_getattr(reader, &seen), 0);
  CHECK(seen.mq_maxmsg == 7 && seen.mq_msgsize == 64 && seen.mq_curmsgs == 4 && seen.mq_flags == O_NONBLOCK);
  expect(reader, "urgent", 30);
  expect(reader, "one", 1);
  expect(unlinked, "one more", 1);
  expect(unlinked, "", 0);
  CHECK(mq_receive(reader, name, 64, NULL) == -1 && errno == EAGAIN);
  CHECK(mq_send(reader, "x", 1, 0) == -1 && errno == EBADF);
  CHECK_EQUAL(mq_getattr(named, &seen), 0);
  CHECK(seen.mq_curmsgs == 0 && seen.mq_flags == 0);
  snprintf(name, sizeof name, "/ckpt-named-%d", getpid());
  mqd_t again = mq_open(name, O_RDWR);
  CHECK(again >= 0);
  send(named, "through the name", 2);
  expect(again, "through the name", 2);
  CHECK_EQUAL(mq_unlink(name), 0);
  target_pass();
}
