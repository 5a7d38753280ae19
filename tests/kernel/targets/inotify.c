// Watches with their numbers, one of them on a file, some removed in between; nothing is lost, nothing is told twice,
// and the next watch gets the next number. A queue that was not read says that events were lost.
#include <sys/inotify.h>
#include <sys/stat.h>

#include "target.h"

static void touch(const char* name) {
  int fd = open(name, O_CREAT | O_WRONLY | O_APPEND, 0644);
  CHECK(fd >= 0);
  CHECK_EQUAL(write(fd, "x", 1), 1);
  CHECK_EQUAL(close(fd), 0);
}

/// The next event must be this one.
static void expect(int fd, int wd, uint32_t mask, const char* name) {
  static char room[64 * 1024] __attribute__((aligned(8)));
  static ssize_t filled, at;
  if (at == filled) {
    at = 0;
    filled = read(fd, room, sizeof room);
    if (filled <= 0) target_fail("no event, where %d %x %s was expected (errno %d)", wd, mask, name, errno);
  }
  const struct inotify_event* event = (const struct inotify_event*)(room + at);
  at += (ssize_t)(sizeof *event + event->len);
  const char* found = event->len != 0 ? event->name : "";
  if (event->wd != wd || event->mask != mask || strcmp(found, name) != 0)
    target_fail("event %d %x \"%s\", not %d %x \"%s\"", event->wd, event->mask, found, wd, mask, name);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  CHECK_EQUAL(mkdir("watched", 0755), 0);
  CHECK_EQUAL(mkdir("other", 0755), 0);
  touch("file");
  int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC), unread = inotify_init1(0);
  CHECK(fd >= 0 && unread >= 0);
  for (int i = 0; i < 40; ++i) {
    int wd = inotify_add_watch(fd, "other", IN_CREATE);
    CHECK_EQUAL(inotify_rm_watch(fd, wd), 0);
    expect(fd, wd, IN_IGNORED, "");
  }
  int folder = inotify_add_watch(fd, "watched", IN_CREATE | IN_DELETE | IN_MOVE);
  int gone = inotify_add_watch(fd, "other", IN_CREATE);
  int file = inotify_add_watch(fd, "file", IN_MODIFY);
  CHECK_EQUAL(inotify_rm_watch(fd, gone), 0);
  expect(fd, gone, IN_IGNORED, "");
  CHECK_EQUAL(folder, 41);
  CHECK_EQUAL(file, 43);
  CHECK_EQUAL(inotify_add_watch(unread, "other", IN_CREATE), 1);
  touch("other/lost");
  touch("watched/early");
  expect(fd, folder, IN_CREATE, "early");
  target_ready();
  target_wait(NULL);

  char byte[sizeof(struct inotify_event) + 256];
  CHECK(read(fd, byte, sizeof byte) == -1 && errno == EAGAIN);
  touch("watched/late");
  touch("file");
  CHECK_EQUAL(rename("watched/late", "watched/later"), 0);
  bool early = unlink("watched/early") == 0;  // gone where a later image was restored before this one
  CHECK(early || errno == ENOENT);
  expect(fd, folder, IN_CREATE, "late");
  expect(fd, file, IN_MODIFY, "");
  expect(fd, folder, IN_MOVED_FROM, "late");
  expect(fd, folder, IN_MOVED_TO, "later");
  if (early) expect(fd, folder, IN_DELETE, "early");
  CHECK_EQUAL(inotify_add_watch(fd, "watched", IN_CREATE), folder);
  CHECK_EQUAL(inotify_add_watch(fd, "other", IN_CREATE), 44);
  CHECK_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
  ssize_t size = read(unread, byte, sizeof byte);
  CHECK(size >= (ssize_t)sizeof(struct inotify_event));
  const struct inotify_event* first = (const struct inotify_event*)byte;
  if (first->mask != IN_Q_OVERFLOW) CHECK(first->mask == IN_CREATE && strcmp(first->name, "lost") == 0);
  CHECK(unlink("other/found") == 0 || errno == ENOENT);
  touch("other/found");
  size = read(unread, byte, sizeof byte);
  CHECK(size > (ssize_t)sizeof(struct inotify_event) && first->mask == IN_CREATE && strcmp(first->name, "found") == 0);
  target_pass();
}
