// Terminals made here, described, closed, made again, and compared by what a program can see of them.
#include "lib/state/terminals/capture.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string>

#include "lib/base/unique_fd.h"
#include "lib/proc/procfs.h"
#include "lib/state/terminals/restore.h"
#include "lib/state/tree/child.h"
#include "tests/support/skip.h"

using namespace ckpt;
using store::TerminalSide;

namespace {

struct Pair {
  UniqueFd master, slave;
  int index = -1;
};

UniqueFd open_slave(const Pair& pair, int flags = O_RDWR) {
  return UniqueFd(::ioctl(pair.master.get(), TIOCGPTPEER, flags | O_NOCTTY | O_CLOEXEC));
}

Pair make_pair(bool with_slave = true) {
  Pair out;
  out.master = UniqueFd(::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
  int unlocked = 0;
  REQUIRE(::ioctl(out.master.get(), TIOCSPTLCK, &unlocked) == 0);
  REQUIRE(::ioctl(out.master.get(), TIOCGPTN, &out.index) == 0);
  if (with_slave) out.slave = open_slave(out);
  return out;
}

/// Raw in both directions, no echo.
void make_raw(int fd) {
  termios settings{};
  REQUIRE(::tcgetattr(fd, &settings) == 0);
  ::cfmakeraw(&settings);
  REQUIRE(::tcsetattr(fd, TCSANOW, &settings) == 0);
}

void put(int fd, const std::string& text) {
  REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

short poll_now(int fd, short events = POLLIN | POLLOUT | POLLPRI) {
  pollfd poll{fd, events, 0};
  ::poll(&poll, 1, 0);
  return poll.revents;
}

/// All that can be read at once; "-" for an end of file.
std::string take(int fd, size_t most = 1 << 20) {
  std::string out;
  while (out.size() < most && (poll_now(fd, POLLIN) & POLLIN) != 0) {
    char data[4096];
    ssize_t n = ::read(fd, data, std::min(sizeof data, most - out.size()));
    if (n < 0) break;
    if (n == 0) return out + "-";
    out.append(data, static_cast<size_t>(n));
  }
  return out;
}

std::string take_line(int fd) {
  char data[4096];
  if ((poll_now(fd, POLLIN) & POLLIN) == 0) return "nothing";
  ssize_t n = ::read(fd, data, sizeof data);
  return n < 0 ? "error" : std::string(data, static_cast<size_t>(n));
}

capture::TerminalsFound describe(const std::vector<int>& fds) {
  auto found = capture::describe_terminals(fds, true);
  REQUIRE_MESSAGE(found, found.error().text());
  CHECK(found->refused.empty());
  auto again = capture::describe_terminals(fds, true);
  REQUIRE(again);
  CHECK(found->terminals == again->terminals);
  return std::move(*found);
}

/// Describes, lets `forget` close everything, makes it again, and describes that: both must be the same.
std::vector<UniqueFd> make_again(const std::vector<int>& fds, Pair& pair, store::Terminal* record = nullptr) {
  auto found = describe(fds);
  std::vector<std::pair<store::TerminalEnd, int>> ends;
  for (size_t i = 0; i < fds.size(); ++i) ends.emplace_back(found.ends[i], ::fcntl(fds[i], F_GETFL));
  pair.slave.reset();
  pair.master.reset();
  for (size_t i = 0; i < fds.size(); ++i) ::close(fds[i]);
  restore::Reasons reasons;
  auto made = restore::make_terminals(found.terminals, ends, reasons);
  auto verdict = reasons.verdict("");
  REQUIRE_MESSAGE(verdict, verdict.error().text());
  std::vector<int> numbers;
  for (const UniqueFd& fd : made) numbers.push_back(fd.get());
  auto again = describe(numbers);
  CHECK(again.ends == found.ends);
  REQUIRE(again.terminals.size() == found.terminals.size());
  CHECK(again.terminals == found.terminals);
  for (size_t i = 0; i < ends.size(); ++i) {
    constexpr int kSeen = O_ACCMODE | O_NONBLOCK;
    CHECK((::fcntl(made[i].get(), F_GETFL) & kSeen) == (ends[i].second & kSeen));
  }
  if (record != nullptr) *record = found.terminals[0];
  return made;
}

int copy_of(const UniqueFd& fd) { return ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0); }

}  // namespace

TEST_CASE("terminals: number, settings, size, owner, mode, packet mode, exclusiveness and lock come back") {
  Pair pair = make_pair();
  termios settings{};
  REQUIRE(::tcgetattr(pair.slave.get(), &settings) == 0);
  settings.c_iflag ^= IXON | IUTF8;
  settings.c_oflag ^= OPOST;
  settings.c_lflag ^= ECHO;
  settings.c_cc[VINTR] = 7, settings.c_cc[VEOF] = 9;
  ::cfsetspeed(&settings, B9600);
  REQUIRE(::tcsetattr(pair.slave.get(), TCSANOW, &settings) == 0);
  winsize size{51, 132, 1000, 2000};
  REQUIRE(::ioctl(pair.master.get(), TIOCSWINSZ, &size) == 0);
  std::string path = "/dev/pts/" + std::to_string(pair.index);
  REQUIRE(::chmod(path.c_str(), 0622) == 0);
  if (::geteuid() == 0) REQUIRE(::chown(path.c_str(), 1234, 5) == 0);
  int on = 1;
  REQUIRE(::ioctl(pair.master.get(), TIOCPKT, &on) == 0);
  REQUIRE(::ioctl(pair.slave.get(), TIOCEXCL) == 0);
  REQUIRE(::ioctl(pair.master.get(), TIOCSPTLCK, &on) == 0);
  int index = pair.index;
  auto made = make_again({copy_of(pair.master), copy_of(pair.slave)}, pair);
  int number = -1, packet = 0, locked = 0, exclusive = 0;
  CHECK(::ioctl(made[0].get(), TIOCGPTN, &number) == 0);
  CHECK(number == index);
  termios found{};
  REQUIRE(::tcgetattr(made[1].get(), &found) == 0);
  CHECK(found.c_iflag == settings.c_iflag);
  CHECK(found.c_oflag == settings.c_oflag);
  CHECK(found.c_lflag == settings.c_lflag);
  CHECK(found.c_cflag == settings.c_cflag);
  CHECK(std::memcmp(found.c_cc, settings.c_cc, 19) == 0);
  CHECK(::ioctl(made[0].get(), TIOCGPKT, &packet) == 0);
  CHECK(::ioctl(made[0].get(), TIOCGPTLCK, &locked) == 0);
  CHECK(::ioctl(made[1].get(), TIOCGEXCL, &exclusive) == 0);
  CHECK(packet == 1);
  CHECK(locked == 1);
  CHECK(exclusive == 1);
  winsize seen{};
  CHECK(::ioctl(made[1].get(), TIOCGWINSZ, &seen) == 0);
  CHECK(std::memcmp(&seen, &size, sizeof size) == 0);
  struct stat st{};
  CHECK(::stat(path.c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0622);
  if (::geteuid() == 0) CHECK(st.st_uid == 1234);
}

TEST_CASE("terminals: lines typed ahead, an end of file, and the line that is being typed come back as they were") {
  Pair pair = make_pair();
  put(pair.master.get(), "first\nsecond\n\4with mark\4\x16\3quoted\n unfinished\tline");
  for (int i = 0; i < 200 && take(pair.master.get()).find("ine") == std::string::npos; ++i) ::usleep(1000);
  auto made = make_again({copy_of(pair.master), copy_of(pair.slave)}, pair);
  CHECK(take(made[0].get()).empty());  // nothing was echoed once more
  CHECK(take_line(made[1].get()) == "first\n");
  CHECK(take_line(made[1].get()) == "second\n");
  CHECK(take_line(made[1].get()) == "");
  CHECK(take_line(made[1].get()) == "with mark");
  CHECK(take_line(made[1].get()) == "\3quoted\n");
  CHECK(take_line(made[1].get()) == "nothing");
  put(made[0].get(), "\x7f\x7f!\n");
  CHECK(take_line(made[1].get()) == " unfinished\tli!\n");
}

TEST_CASE("terminals: raw input with every byte, and more output than one buffer holds, in packet mode") {
  Pair pair = make_pair();
  make_raw(pair.slave.get());
  std::string typed, output;
  for (int i = 0; i < 256; ++i) typed += static_cast<char>(i);
  put(pair.master.get(), typed);
  for (int i = 0; i < 9000; ++i) output += static_cast<char>(i * 7);
  put(pair.slave.get(), output);
  int on = 1;
  REQUIRE(::ioctl(pair.master.get(), TIOCPKT, &on) == 0);
  auto made = make_again({copy_of(pair.master), copy_of(pair.slave)}, pair);
  int packet = 0;
  REQUIRE(::ioctl(made[0].get(), TIOCGPKT, &packet) == 0);
  CHECK(packet == 1);
  int off = 0;
  REQUIRE(::ioctl(made[0].get(), TIOCPKT, &off) == 0);
  CHECK(take(made[0].get()) == output);
  CHECK(take(made[1].get()) == typed);
}

TEST_CASE("terminals: output that waits is not processed twice") {
  Pair pair = make_pair();
  put(pair.slave.get(), "one\ntwo\n");
  auto made = make_again({copy_of(pair.master), copy_of(pair.slave)}, pair);
  CHECK(take(made[0].get()) == "one\r\ntwo\r\n");
  put(made[1].get(), "three\n");
  CHECK(take(made[0].get()) == "three\r\n");
}

TEST_CASE("terminals: an output that was stopped stays so, and what starts it is what would have") {
  for (bool by_call : {false, true}) {
    Pair pair = make_pair();
    if (by_call)
      REQUIRE(::tcflow(pair.slave.get(), TCOOFF) == 0);
    else
      put(pair.master.get(), "\x13");
    for (int i = 0; i < 200 && (poll_now(pair.slave.get()) & POLLOUT) != 0; ++i) ::usleep(1000);
    store::Terminal record;
    auto made = make_again({copy_of(pair.master), copy_of(pair.slave)}, pair, &record);
    CHECK(record.stop == (by_call ? store::OutputStop::kCall : store::OutputStop::kCharacter));
    CHECK((poll_now(made[1].get()) & POLLOUT) == 0);
    put(made[0].get(), "\x11");
    for (int i = 0; i < (by_call ? 20 : 200) && (poll_now(made[1].get()) & POLLOUT) == 0; ++i) ::usleep(1000);
    CHECK(((poll_now(made[1].get()) & POLLOUT) != 0) == !by_call);
    if (by_call) REQUIRE(::tcflow(made[1].get(), TCOON) == 0);
    CHECK((poll_now(made[1].get()) & POLLOUT) != 0);
  }
}

TEST_CASE("terminals: a master whose slave was never open, and one whose slave was closed") {
  Pair fresh = make_pair(false);
  auto made = make_again({copy_of(fresh.master)}, fresh);
  CHECK((poll_now(made[0].get()) & POLLHUP) == 0);

  Pair closed = make_pair();
  put(closed.slave.get(), "last words");
  closed.slave.reset();
  made = make_again({copy_of(closed.master)}, closed);
  CHECK((poll_now(made[0].get()) & POLLHUP) != 0);
  char data[64];
  CHECK(::read(made[0].get(), data, sizeof data) == 10);
  CHECK(::read(made[0].get(), data, sizeof data) == -1);
  CHECK(errno == EIO);
}

TEST_CASE("terminals: a slave whose master is gone is hung up, under its number") {
  Pair pair = make_pair();
  int index = pair.index;
  pair.master.reset();
  auto made = make_again({copy_of(pair.slave)}, pair);
  struct stat st{};
  REQUIRE(::fstat(made[0].get(), &st) == 0);
  CHECK(st.st_rdev == (136ull << 8 | static_cast<unsigned>(index)));
  char byte;
  CHECK(::read(made[0].get(), &byte, 1) == 0);
  CHECK(::write(made[0].get(), "x", 1) == -1);
  CHECK((poll_now(made[0].get()) & POLLHUP) != 0);
}

TEST_CASE("terminals: one slave hung up, a later one alive") {
  if (::geteuid() != 0) return ckpt::test::skip("needs root");
  Pair pair = make_pair();
  UniqueFd old = std::move(pair.slave);
  REQUIRE(::ioctl(old.get(), TIOCVHANGUP) == 0);
  pair.slave = open_slave(pair, O_RDWR | O_NONBLOCK);
  auto made = make_again({copy_of(pair.master), old.release(), copy_of(pair.slave)}, pair);
  CHECK((poll_now(made[1].get()) & POLLHUP) != 0);
  CHECK((poll_now(made[2].get()) & POLLHUP) == 0);
  put(made[2].get(), "alive");
  CHECK(take(made[0].get()) == "alive");
}

TEST_CASE("terminals: a descriptor opened as /dev/tty leads to its terminal, and nothing is hung up by that") {
  Pair pair = make_pair();
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  int pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {  // hands over a descriptor opened as /dev/tty by staying alive until it was duplicated
    ::setsid();
    ::ioctl(pair.slave.get(), TIOCSCTTY, 0);
    int fd = ::open("/dev/tty", O_RDWR | O_NONBLOCK);
    ::signal(SIGHUP, SIG_IGN);
    (void)!::write(ends[1], &fd, sizeof fd);
    (void)!::read(ends[1], &fd, sizeof fd);
    ::ioctl(pair.slave.get(), TIOCNOTTY);
    ::_exit(0);
  }
  int theirs = -1;
  REQUIRE(::read(ends[0], &theirs, sizeof theirs) == sizeof theirs);
  int pidfd = static_cast<int>(::syscall(434, pid, 0));
  int fd = static_cast<int>(::syscall(438, pidfd, theirs, 0));
  REQUIRE(fd >= 0);
  auto before = capture::describe_terminals({pair.master.get(), pair.slave.get()}, false);
  REQUIRE(before);
  CHECK(before->terminals[0].session == pid);
  CHECK(before->terminals[0].foreground == pid);
  (void)!::write(ends[0], &fd, sizeof fd);
  ::waitpid(pid, nullptr, 0);
  for (int own : {ends[0], ends[1], pidfd}) ::close(own);
  auto made = make_again({copy_of(pair.master), copy_of(pair.slave), fd}, pair);
  char link[64] = {};
  REQUIRE(::readlink(("/proc/self/fd/" + std::to_string(made[2].get())).c_str(), link, sizeof link - 1) > 0);
  CHECK(std::string(link) == "/dev/tty");
  put(made[2].get(), "through /dev/tty");
  CHECK(take(made[0].get()) == "through /dev/tty");
  CHECK((poll_now(made[1].get()) & POLLHUP) == 0);
}

TEST_CASE("terminals: several at once, the numbers between them taken by others; one that is taken is refused") {
  Pair first = make_pair(), between = make_pair(), last = make_pair();
  auto found = describe({first.master.get(), first.slave.get(), last.slave.get(), last.master.get()});
  REQUIRE(found.terminals.size() == 2);
  std::vector<std::pair<store::TerminalEnd, int>> ends;
  for (const auto& end : found.ends) ends.emplace_back(end, O_RDWR);
  int first_index = first.index, last_index = last.index;
  first = Pair(), last = Pair();
  restore::Reasons reasons;
  auto made = restore::make_terminals(found.terminals, ends, reasons);
  REQUIRE(reasons.verdict(""));
  int number = -1;
  REQUIRE(::ioctl(made[0].get(), TIOCGPTN, &number) == 0);
  CHECK(number == first_index);
  REQUIRE(::ioctl(made[3].get(), TIOCGPTN, &number) == 0);
  CHECK(number == last_index);
  auto none = restore::make_terminals(found.terminals, ends, reasons);
  auto verdict = reasons.verdict("");
  REQUIRE_FALSE(verdict);
  CHECK(verdict.error().code == Code::kBusy);
}

TEST_CASE("terminals: a slave whose master is somebody else's is external; a file is no terminal") {
  Pair pair = make_pair();
  auto found = capture::describe_terminals({pair.slave.get()}, false);
  REQUIRE(found);
  CHECK(found->terminals.empty());
  CHECK(found->ends[0].terminal == -1);
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  auto file = capture::identify_terminal(null.get());
  REQUIRE(file);
  CHECK_FALSE(file->has_value());
}

TEST_CASE("terminals: a ckpt that is killed while it looks leaves what was typed and written where it was") {
  Pair pair = make_pair();
  std::string lines, output(6000, 'o');
  for (int i = 0; i < 100; ++i) lines += "a line of input\n";
  termios settings{}, after{};
  REQUIRE(::tcgetattr(pair.slave.get(), &settings) == 0);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  REQUIRE(::tcsetattr(pair.slave.get(), TCSANOW, &settings) == 0);
  put(pair.master.get(), lines + "rest");
  put(pair.slave.get(), output);
  REQUIRE(::tcgetattr(pair.slave.get(), &settings) == 0);
  for (int round = 0; round < 40; ++round) {
    int pid = ::fork();
    if (pid == 0) {
      for (;;) (void)capture::describe_terminals({pair.master.get(), pair.slave.get()}, true);
    }
    ::usleep(static_cast<useconds_t>(round * 137 % 5000));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::usleep(20000);  // a helper finishes what it began
  }
  // The last helper, too, on a machine that lets it wait.
  bool settled = false;
  for (int i = 0; i < 1000 && !settled; ++i, ::usleep(10'000)) {
    REQUIRE(::tcgetattr(pair.slave.get(), &after) == 0);
    settled = std::memcmp(&settings, &after, sizeof after) == 0;
  }
  CHECK(settled);
  auto found = describe({pair.master.get(), pair.slave.get()});
  CHECK(found.terminals[0].lines.size() == 100);
  CHECK(found.terminals[0].typed == std::vector<uint8_t>{'r', 'e', 's', 't'});
  CHECK(take(pair.master.get()) == output);
  for (int i = 0; i < 100; ++i) REQUIRE(take_line(pair.slave.get()) == "a line of input\n");
  CHECK(take_line(pair.slave.get()) == "nothing");
}

TEST_CASE("terminals: who outside of the tree has a slave open or is controlled by it is found") {
  Pair pair = make_pair();
  auto found = capture::describe_terminals({pair.master.get()}, false);
  REQUIRE(found);
  int pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  std::vector<int> tree = {::getpid()};
  auto users = capture::outside_users_of_terminals(found->terminals, tree);
  if (users.size() != 1) ::kill(pid, SIGKILL);  // nobody else would
  REQUIRE(users.size() == 1);
  CHECK(users[0].first == pair.index);
  CHECK(users[0].second.find(std::to_string(pid)) == 0);
  tree = {std::min(::getpid(), pid), std::max(::getpid(), pid)};  // numbers begin anew at some time
  CHECK(capture::outside_users_of_terminals(found->terminals, tree).empty());
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("terminals: who has one of that number in another devpts is no user of it") {
  if (::geteuid() != 0) return ckpt::test::skip("needs root");
  Pair pair = make_pair();
  auto found = capture::describe_terminals({pair.master.get()}, false);
  REQUIRE(found);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const int pid = ::fork();
  if (pid == 0) {
    pair.master.reset(), pair.slave.reset();
    bool made = ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                ::mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=666") == 0;
    int number = -1, unlocked = 0;
    while (made && number < pair.index) {
      const int master = ::open("/dev/pts/ptmx", O_RDWR | O_NOCTTY);
      made = ::ioctl(master, TIOCGPTN, &number) == 0 && ::ioctl(master, TIOCSPTLCK, &unlocked) == 0;
    }
    made = made && ::open(("/dev/pts/" + std::to_string(pair.index)).c_str(), O_RDWR | O_NOCTTY) >= 0;
    (void)!::write(ready[1], made ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char made = 0;
  REQUIRE(::read(ready[0], &made, 1) == 1);
  const auto users = capture::outside_users_of_terminals(found->terminals, {::getpid()});
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ::close(ready[0]), ::close(ready[1]);
  if (made != 'y') return ckpt::test::skip("no devpts can be mounted");
  CHECK(users.empty());
}

TEST_CASE("terminals: the leader of a session takes its terminal, and what it makes then has it too") {
  if (::geteuid() != 0) return ckpt::test::skip("needs root");
  Pair pair = make_pair();
  int number = ::fork();
  if (number == 0) ::_exit(0);
  ::waitpid(number, nullptr, 0);
  auto area = restore::RestorerArea::create({});
  REQUIRE(area);
  auto child = restore::Child::create(number, *area);
  REQUIRE(child);
  store::Terminal record;
  record.foreground = number;
  restore::SyscallBatch batch;
  batch.add("lead a session", SYS_setsid);
  restore::take_controlling_terminal(pair.slave.get(), batch);
  restore::set_foreground_group(record.foreground, pair.slave.get(), *area, batch);
  REQUIRE(child->run(batch));
  auto stat = proc::read_stat(number);
  REQUIRE(stat);
  CHECK(stat->terminal == (136 << 8 | pair.index));
  auto found = capture::describe_terminals({pair.master.get(), pair.slave.get()}, false);
  REQUIRE(found);
  CHECK(found->terminals[0].session == number);
  CHECK(found->terminals[0].foreground == number);
}

TEST_CASE("terminals: a status of packet mode that nobody has read is not thrown away") {
  Pair pair = make_pair();
  int on = 1;
  REQUIRE(::ioctl(pair.master.get(), TIOCPKT, &on) == 0);
  REQUIRE(::tcflush(pair.slave.get(), TCIFLUSH) == 0);
  auto found = capture::describe_terminals({pair.master.get(), pair.slave.get()}, true);
  REQUIRE_FALSE(found);
  CHECK(found.error().code == Code::kBusy);
  CHECK((poll_now(pair.master.get()) & POLLPRI) != 0);
}
