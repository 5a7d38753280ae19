// fanotify marks on a folder and on a mount.
#include <sys/fanotify.h>
#include <sys/stat.h>

#include "target.h"

static uint64_t next_event(int fd) {
  struct fanotify_event_metadata event;
  ssize_t size = read(fd, &event, sizeof event);
  if (size < 0 && errno == EAGAIN) return 0;
  CHECK_EQUAL(size, sizeof event);
  CHECK_EQUAL(event.pid, getpid());
  CHECK_EQUAL(close(event.fd), 0);
  return event.mask;
}

static void touch(const char* name) {
  int fd = open(name, O_CREAT | O_WRONLY, 0644);
  CHECK(fd >= 0);
  CHECK_EQUAL(write(fd, "x", 1), 1);
  CHECK_EQUAL(close(fd), 0);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY);
  if (fd < 0) target_skip("fanotify: %s", strerror(errno));
  CHECK_EQUAL(mkdir("watched", 0755), 0);
  CHECK_EQUAL(fanotify_mark(fd, FAN_MARK_ADD, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, AT_FDCWD, "watched"), 0);
  touch("watched/early");
  CHECK_EQUAL(next_event(fd), FAN_CLOSE_WRITE);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(next_event(fd), 0);
  touch("watched/late");
  CHECK_EQUAL(next_event(fd), FAN_CLOSE_WRITE);
  touch("elsewhere");
  CHECK_EQUAL(next_event(fd), 0);
  CHECK_EQUAL(fanotify_mark(fd, FAN_MARK_REMOVE, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, AT_FDCWD, "watched"), 0);
  CHECK_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
  target_pass();
}
