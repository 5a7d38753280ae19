// Both ends of terminals in one process: number, settings, size, packet mode, lock, owner, what was typed and written
// and not read yet, a slave that was closed, one that was never open, a slave that is hung up, an output that is
// stopped.
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>

#include "target.h"

static int new_master(void) {
  int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
  if (master < 0) target_skip("no /dev/ptmx");
  int unlocked = 0;
  CHECK_EQUAL(ioctl(master, TIOCSPTLCK, &unlocked), 0);
  return master;
}

static int index_of(int master) {
  int number = -1;
  CHECK_EQUAL(ioctl(master, TIOCGPTN, &number), 0);
  return number;
}

static int open_slave(int master, int flags) {
  char path[32];
  snprintf(path, sizeof path, "/dev/pts/%d", index_of(master));
  int slave = open(path, flags | O_NOCTTY);
  CHECK(slave >= 0);
  return slave;
}

static short poll_now(int fd) {
  struct pollfd poll_one = {.fd = fd, .events = POLLIN | POLLOUT};
  CHECK(poll(&poll_one, 1, 0) >= 0);
  return poll_one.revents;
}

static void expect(int fd, const char* text) {
  char found[256] = "";
  for (int i = 0; i < 1000 && (poll_now(fd) & POLLIN) == 0; ++i) sleep_ms(1);
  ssize_t count = read(fd, found, sizeof found - 1);
  if (count != (ssize_t)strlen(text) || memcmp(found, text, strlen(text)) != 0)
    target_fail("descriptor %d gives \"%s\" (%zd), not \"%s\"", fd, found, count, text);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  int cooked = new_master(), raw = new_master(), fresh = new_master(), closed = new_master(), gone = new_master(),
      stopped = new_master();
  int indices[] = {index_of(cooked), index_of(raw),  index_of(fresh),
                   index_of(closed), index_of(gone), index_of(stopped)};
  int cooked_slave = open_slave(cooked, O_RDWR), reader = open_slave(cooked, O_RDONLY | O_NONBLOCK);
  int raw_slave = open_slave(raw, O_RDWR | O_CLOEXEC), gone_slave = open_slave(gone, O_RDWR);
  int stopped_slave = open_slave(stopped, O_RDWR | O_NONBLOCK);
  struct winsize size = {.ws_row = 50, .ws_col = 133, .ws_xpixel = 7, .ws_ypixel = 9};
  CHECK_EQUAL(ioctl(cooked, TIOCSWINSZ, &size), 0);
  CHECK_EQUAL(fchmod(cooked_slave, 0620), 0);
  struct termios settings = {0}, seen = {0};  // padding is compared, too
  CHECK_EQUAL(tcgetattr(raw_slave, &settings), 0);
  cfmakeraw(&settings);
  settings.c_cc[VMIN] = 3;
  settings.c_cc[VTIME] = 0;
  CHECK_EQUAL(tcsetattr(raw_slave, TCSANOW, &settings), 0);
  CHECK_EQUAL(tcgetattr(raw_slave, &settings), 0);

  CHECK_EQUAL(write(cooked, "one\ntwo\4\4rest", 13), 13);
  expect(cooked, "one\r\ntworest");  // the echo
  CHECK_EQUAL(write(cooked_slave, "answer\n", 7), 7);
  CHECK_EQUAL(write(raw, "\0\3\4\x7f\xff", 5), 5);
  static uint8_t output[9000], found[9000];
  fill_words(output, sizeof output, 11);
  for (size_t done = 0; done < sizeof output;) {
    ssize_t count = write(raw_slave, output + done, sizeof output - done);
    CHECK(count > 0);
    done += (size_t)count;
  }
  int on = 1, off = 0, value = 0;
  CHECK_EQUAL(ioctl(raw, TIOCPKT, &on), 0);
  CHECK_EQUAL(ioctl(raw, TIOCSPTLCK, &on), 0);
  CHECK_EQUAL(close(open_slave(closed, O_RDWR)), 0);
  CHECK_EQUAL(close(gone), 0);
  CHECK_EQUAL(write(stopped, "\x13", 1), 1);
  for (int i = 0; i < 1000 && (poll_now(stopped_slave) & POLLOUT) != 0; ++i) sleep_ms(1);
  CHECK_EQUAL(poll_now(stopped_slave) & POLLOUT, 0);
  target_ready();
  target_wait(NULL);
  CHECK_EQUAL(fcntl(cooked_slave, F_GETFD), 0);
  CHECK_EQUAL(fcntl(raw_slave, F_GETFD), FD_CLOEXEC);
  CHECK_EQUAL(fcntl(cooked_slave, F_GETFL) & O_CLOEXEC, 0);

  int masters[] = {cooked, raw, fresh, closed, -1, stopped};
  for (int i = 0; i < 6; ++i)
    if (masters[i] >= 0) CHECK_EQUAL(index_of(masters[i]), indices[i]);
  struct stat st;
  struct winsize seen_size;
  CHECK_EQUAL(fstat(cooked_slave, &st), 0);
  CHECK_EQUAL(st.st_mode & 0777, 0620);
  CHECK_EQUAL(ioctl(cooked_slave, TIOCGWINSZ, &seen_size), 0);
  CHECK_EQUAL(memcmp(&size, &seen_size, sizeof size), 0);
  CHECK_EQUAL(fcntl(reader, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDONLY | O_NONBLOCK);
  CHECK_EQUAL(fcntl(raw_slave, F_GETFD), FD_CLOEXEC);
  CHECK_EQUAL(tcgetattr(raw_slave, &seen), 0);
  CHECK_EQUAL(memcmp(&settings, &seen, sizeof seen), 0);
  CHECK_EQUAL(ioctl(raw, TIOCGPKT, &value), 0);
  CHECK_EQUAL(value, 1);
  CHECK_EQUAL(ioctl(raw, TIOCGPTLCK, &value), 0);
  CHECK_EQUAL(value, 1);

  expect(cooked, "answer\r\n");
  expect(reader, "one\n");
  expect(cooked_slave, "two");
  expect(cooked_slave, "");
  CHECK(read(reader, found, 1) == -1 && errno == EAGAIN);
  CHECK_EQUAL(write(cooked, "\x7f!\n", 3), 3);
  expect(cooked_slave, "res!\n");
  CHECK_EQUAL(read(raw_slave, found, sizeof found), 5);
  CHECK_EQUAL(memcmp(found, "\0\3\4\x7f\xff", 5), 0);
  CHECK_EQUAL(ioctl(raw, TIOCPKT, &off), 0);
  for (size_t done = 0; done < sizeof found;) {
    ssize_t count = read(raw, found + done, sizeof found - done);
    CHECK(count > 0);
    done += (size_t)count;
  }
  CHECK_EQUAL(memcmp(found, output, sizeof found), 0);
  CHECK_EQUAL(poll_now(fresh) & POLLHUP, 0);
  CHECK_EQUAL(poll_now(closed) & POLLHUP, POLLHUP);
  CHECK_EQUAL(read(gone_slave, found, 1), 0);
  CHECK(write(gone_slave, "x", 1) == -1 && errno == EIO);
  CHECK(write(stopped_slave, "x", 1) == -1 && errno == EAGAIN);
  CHECK_EQUAL(write(stopped, "\x11", 1), 1);
  for (int i = 0; i < 1000 && (poll_now(stopped_slave) & POLLOUT) == 0; ++i) sleep_ms(1);
  CHECK_EQUAL(write(stopped_slave, "x", 1), 1);
  target_pass();
}
