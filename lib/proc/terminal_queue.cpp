#include "lib/proc/terminal_queue.h"

#include <asm/termbits.h>  // struct termios2, which <termios.h> does not have and does not go together with
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/host.h"

namespace ckpt::proc {

namespace {

// The kernel keeps 4 KiB in a terminal's line discipline and at most 64 KiB before it (drivers/tty/tty_buffer.c).
constexpr size_t kDisciplineRoom = 4095, kMaxBytes = 160 * 1024, kMaxLines = 8192;

/// What helper and ckpt share. No pointers, no containers: the helper is a fork of a program with threads.
struct Taken {
  size_t lines, typed, output, line_bytes;
  struct {
    uint32_t size;
    bool marked;
  } line[kMaxLines];
  uint8_t line_data[kMaxBytes], typed_data[kMaxBytes], output_data[kMaxBytes];
  TerminalQueues::Stop stop;
  const char* failed;  ///< a literal
  int error;
  bool altered;  ///< something is missing from the terminal
  bool done;
};

short ready(int fd, short events, int timeout_ms = 0) {
  pollfd poll{fd, events, 0};
  return ::poll(&poll, 1, timeout_ms) == 1 ? poll.revents : short{0};
}

bool is_canonical(const termios2& settings) { return (settings.c_lflag & ICANON) != 0; }

/// `settings` without anything that changes, echoes or acts upon what passes. IXON stays: to turn it off would start a
/// stopped output.
termios2 neutral(const termios2& settings, uint8_t mark) {
  termios2 out = settings;
  out.c_iflag &= IXON;
  out.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  out.c_lflag &= ICANON | EXTPROC;
  uint8_t eol = settings.c_cc[VEOL], eol2 = settings.c_cc[VEOL2];
  std::fill(std::begin(out.c_cc), std::end(out.c_cc), uint8_t{0});
  out.c_cc[VEOL] = eol, out.c_cc[VEOL2] = eol2, out.c_cc[VEOF] = mark;
  if (!is_canonical(settings)) out.c_cc[VMIN] = 1, out.c_cc[VTIME] = 0;
  return out;
}

bool ends_by_itself(const termios2& settings, const uint8_t* data, size_t size) {
  if (size == 0) return false;
  uint8_t last = data[size - 1];
  return last == '\n' || (last != 0 && (last == settings.c_cc[VEOL] || last == settings.c_cc[VEOL2]));
}

/// A byte that may stand for end-of-file because no line has it. 0: none.
uint8_t unused_byte(const Taken& taken) {
  std::array<bool, 256> used{};
  for (size_t i = 0; i < taken.line_bytes; ++i) used[taken.line_data[i]] = true;
  for (size_t i = 0; i < taken.typed; ++i) used[taken.typed_data[i]] = true;
  used[0] = used['\n'] = true;
  for (size_t i = 4; i < used.size(); ++i) {
    if (!used[i]) return static_cast<uint8_t>(i);
  }
  return 0;
}

class Queue {
 public:
  Queue(int master, int slave, const std::vector<int>& users, bool may_type, Taken& taken)
      : may_type_(may_type), master_(master), slave_(slave), users_(users), taken_(taken) {}

  /// Sets `failed` on every failure; goes on to put back what it can.
  void copy() {
    if (!begin()) return;
    if (slave_ >= 0 && !may_type_ && may_have_input()) {
      errno = EPERM;
      fail("holds what only CAP_SYS_ADMIN can put back");
      return end();
    }
    if (slave_ >= 0) take_input();
    take_output();
    if (slave_ >= 0) find_stop();
    put();
    end();
  }

  void fill() {
    if (::ioctl(master_, TCGETS2, &settings_) != 0) return fail("cannot read the settings");
    make_quiet();
    put();
    restore_flags();
  }

 private:
  void fail(const char* what, bool altered = false) {
    if (taken_.failed == nullptr) taken_.failed = what, taken_.error = errno;
    taken_.altered |= altered;
  }

  bool may_have_input() {
    int waiting = 0;
    return is_canonical(settings_) || ::ioctl(slave_, FIONREAD, &waiting) != 0 || waiting > 0;
  }

  /// Never sleeps in a read or write, never sends SIGIO to a program for what is done here.
  void make_quiet() {
    for (size_t i = 0; i < users_.size() && i < kMaxUsers; ++i) {
      int flags = ::fcntl(users_[i], F_GETFL);
      asynchronous_[i] = flags >= 0 && (flags & O_ASYNC) != 0;
      if (asynchronous_[i]) (void)::fcntl(users_[i], F_SETFL, flags & ~O_ASYNC);
    }
    const int fds[2] = {master_, slave_};
    for (int i = 0; i < 2; ++i) {
      flags_[i] = fds[i] < 0 ? -1 : ::fcntl(fds[i], F_GETFL);
      if (flags_[i] >= 0) (void)::fcntl(fds[i], F_SETFL, flags_[i] | O_NONBLOCK);
    }
  }
  void restore_flags() {
    if (flags_[1] >= 0) (void)::fcntl(slave_, F_SETFL, flags_[1]);
    if (flags_[0] >= 0) (void)::fcntl(master_, F_SETFL, flags_[0]);
    for (size_t i = 0; i < users_.size() && i < kMaxUsers; ++i) {
      if (asynchronous_[i]) (void)::fcntl(users_[i], F_SETFL, ::fcntl(users_[i], F_GETFL) | O_ASYNC);
    }
  }

  bool begin() {
    errno = 0;
    if (::ioctl(master_, TCGETS2, &settings_) != 0) return fail("cannot read the settings"), false;
    if (::ioctl(master_, TIOCGPKT, &packet_) != 0) packet_ = 0;
    if (packet_ != 0 && (ready(master_, POLLPRI) & POLLPRI) != 0) {
      errno = EBUSY;
      return fail("a status of packet mode waits to be read"), false;
    }
    make_quiet();
    int off = 0;
    if (packet_ != 0 && ::ioctl(master_, TIOCPKT, &off) != 0) {
      fail("cannot leave packet mode");
      return restore_flags(), false;
    }
    return true;
  }

  void end() {
    int on = 1;
    if (packet_ != 0 && ::ioctl(master_, TIOCPKT, &on) != 0) fail("cannot enter packet mode again", true);
    restore_flags();
  }

  bool set(const termios2& settings) {
    if (::ioctl(master_, TCSETS2, &settings) == 0) return true;
    return fail("cannot change the settings", true), false;
  }

  /// Takes all that can be read without waiting; poll makes the kernel move on what is on its way.
  void drain(int fd, uint8_t* data, size_t& size) {
    for (;;) {
      (void)ready(fd, POLLIN);
      int waiting = 0;
      if (::ioctl(fd, FIONREAD, &waiting) != 0 || waiting <= 0) return;
      if (size + static_cast<size_t>(waiting) > kMaxBytes) return errno = EOVERFLOW, fail("holds too much");
      ssize_t n = ::read(fd, data + size, static_cast<size_t>(waiting));
      if (n <= 0) return;
      size += static_cast<size_t>(n);
    }
  }

  void take_lines() {
    while (taken_.lines < kMaxLines && (ready(slave_, POLLIN) & POLLIN) != 0) {
      uint8_t* at = taken_.line_data + taken_.line_bytes;
      if (kMaxBytes - taken_.line_bytes < kDisciplineRoom + 1) return errno = EOVERFLOW, fail("holds too much");
      ssize_t n = ::read(slave_, at, kDisciplineRoom + 1);
      if (n < 0) return errno == EAGAIN ? void() : fail("cannot be read");
      auto size = static_cast<size_t>(n);
      taken_.line[taken_.lines++] = {static_cast<uint32_t>(size), !ends_by_itself(settings_, at, size)};
      taken_.line_bytes += size;
    }
  }

  /// Whole lines are read as they stand; the line that is being typed only shows outside of canonical mode.
  void take_input() {
    if (!is_canonical(settings_)) return drain(slave_, taken_.typed_data, taken_.typed);
    take_lines();
    termios2 raw = neutral(settings_, 0);
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON);
    raw.c_cc[VMIN] = 1;
    if (!set(raw)) return;
    drain(slave_, taken_.typed_data, taken_.typed);
    set(settings_);
  }

  void take_output() { drain(master_, taken_.output_data, taken_.output); }

  /// With its output queue empty a slave that cannot be written to is stopped. Only starting it tells what stopped it.
  void find_stop() {
    if ((ready(slave_, POLLOUT) & POLLOUT) != 0) return;
    (void)::ioctl(slave_, TCXONC, TCOON);
    taken_.stop =
        (ready(slave_, POLLOUT) & POLLOUT) != 0 ? TerminalQueues::Stop::kCall : TerminalQueues::Stop::kCharacter;
    if (taken_.stop == TerminalQueues::Stop::kCall) return;
    termios2 started = settings_;
    started.c_iflag &= ~static_cast<tcflag_t>(IXON);
    set(started);
  }

  void put() {
    if (taken_.lines + taken_.typed + taken_.output != 0) {
      uint8_t mark = unused_byte(taken_);
      bool marked = false;
      for (size_t i = 0; i < taken_.lines; ++i) marked |= taken_.line[i].marked;
      if (marked && mark == 0) errno = EOVERFLOW, fail("no character is left to end a line with", true);
      if (slave_ < 0) {
        type(master_, taken_.output_data, taken_.output);
      } else if (set(neutral(settings_, mark))) {
        write_output();
        put_input(mark);
      }
    }
    set(settings_);
    if (slave_ >= 0) put_stop();
  }

  void put_input(uint8_t mark) {
    const uint8_t* at = taken_.line_data;
    for (size_t i = 0; i < taken_.lines; at += taken_.line[i].size, ++i) {
      type(slave_, at, taken_.line[i].size);
      if (taken_.line[i].marked) type(slave_, &mark, 1);
    }
    size_t typed = std::min(taken_.typed, kDisciplineRoom);
    type(slave_, taken_.typed_data, typed);
    // What did not fit into the line discipline waits before it.
    if (typed < taken_.typed) write_all(master_, taken_.typed_data + typed, taken_.typed - typed);
  }

  void write_output() { write_all(slave_, taken_.output_data, taken_.output); }

  /// The kernel moves bytes on in the background: room comes a little later.
  void write_all(int fd, const uint8_t* data, size_t size) {
    constexpr int kPatienceMs = 500;
    for (int waited = 0; size != 0;) {
      ssize_t n = ::write(fd, data, size);
      if (n > 0) {
        data += n, size -= static_cast<size_t>(n), waited = 0;
        continue;
      }
      if ((n < 0 && errno != EAGAIN) || ++waited > kPatienceMs) return fail("cannot be filled", true);
      (void)::poll(nullptr, 0, 1);
    }
  }

  /// TIOCSTI: as if it had arrived at this end.
  void type(int fd, const uint8_t* data, size_t size) {
    for (size_t i = 0; i < size; ++i) {
      if (::ioctl(fd, TIOCSTI, data + i) != 0) return fail("cannot be filled", true);
    }
  }

  void put_stop() {
    if (taken_.stop == TerminalQueues::Stop::kNone) return;
    if (taken_.stop == TerminalQueues::Stop::kCall) {
      if (::ioctl(slave_, TCXONC, TCOOFF) != 0) fail("its output cannot be stopped", true);
      return;
    }
    uint8_t stop = settings_.c_cc[VSTOP];
    if ((settings_.c_iflag & IXON) != 0 && stop != 0) return type(slave_, &stop, 1);
    termios2 stopping = settings_;  // stopped by a character that is none any more
    stopping.c_iflag |= IXON;
    stopping.c_cc[VSTOP] = stop = 0x13;
    if (set(stopping)) type(slave_, &stop, 1);
    stopping.c_cc[VSTOP] = settings_.c_cc[VSTOP];
    set(stopping);
  }

  static constexpr size_t kMaxUsers = 256;
  const bool may_type_;  ///< into the slave
  int master_, slave_;
  const std::vector<int>& users_;
  Taken& taken_;
  bool asynchronous_[kMaxUsers] = {};
  termios2 settings_{};
  int packet_ = 0;
  int flags_[2] = {-1, -1};
};

Error error_of(const Taken& taken, const std::string& subject) {
  Error error = sys_error(taken.error, subject, taken.failed);
  if (taken.altered) error = std::move(error).with_code(Code::kTargetAltered);
  return error;
}

Result<Mapping> shared_room() {
  void* memory = ::mmap(nullptr, sizeof(Taken), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return sys_error("", "no memory for a terminal's content");
  return Mapping(memory, sizeof(Taken));
}

TerminalQueues queues_of(const Taken& taken) {
  TerminalQueues out;
  const uint8_t* at = taken.line_data;
  for (size_t i = 0; i < taken.lines; at += taken.line[i].size, ++i)
    out.lines.push_back({{at, at + taken.line[i].size}, taken.line[i].marked});
  out.typed.assign(taken.typed_data, taken.typed_data + taken.typed);
  out.output.assign(taken.output_data, taken.output_data + taken.output);
  out.stop = taken.stop;
  return out;
}

}  // namespace

bool may_type() {
  constexpr int kSysAdmin = 21;
  return has_capability_everywhere(kSysAdmin);
}

Result<TerminalQueues> copy_terminal_queues(int master, int slave, const std::vector<int>& users,
                                            const std::string& subject) {
  CKPT_TRY_ASSIGN(Mapping room, shared_room());
  Taken& taken = *static_cast<Taken*>(static_cast<void*>(room.data()));
  const bool types = may_type();
  sigset_t all, before;
  sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t helper = ::fork();
  if (helper == 0) {
    (void)::setsid();
    Queue(master, slave, users, types, taken).copy();
    taken.done = true;
    ::_exit(0);
  }
  int error = errno;
  int status = 0;
  if (helper > 0) {
    while (::waitpid(helper, &status, 0) < 0 && errno == EINTR) {
    }
  }
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (helper < 0) return fork_error(error, subject, "cannot start a helper to copy its content");
  if (!taken.done) return fail(Code::kTargetAltered, subject, "the helper that copied its content was killed");
  if (taken.failed != nullptr) return error_of(taken, subject);
  return queues_of(taken);
}

Result<void> fill_terminal_queues(int master, int slave, const TerminalQueues& queues, const std::string& subject) {
  CKPT_TRY_ASSIGN(Mapping room, shared_room());
  Taken& taken = *static_cast<Taken*>(static_cast<void*>(room.data()));
  auto too_much = [&] {
    return fail(Code::kCorrupt, subject, "the image has more content for it than a terminal holds");
  };
  if (queues.lines.size() > kMaxLines || queues.typed.size() > kMaxBytes || queues.output.size() > kMaxBytes)
    return too_much();
  for (const auto& line : queues.lines) {
    if (taken.line_bytes + line.bytes.size() > kMaxBytes) return too_much();
    taken.line[taken.lines++] = {static_cast<uint32_t>(line.bytes.size()), line.marked};
    std::copy(line.bytes.begin(), line.bytes.end(), taken.line_data + taken.line_bytes);
    taken.line_bytes += line.bytes.size();
  }
  std::copy(queues.typed.begin(), queues.typed.end(), taken.typed_data);
  std::copy(queues.output.begin(), queues.output.end(), taken.output_data);
  taken.typed = queues.typed.size(), taken.output = queues.output.size(), taken.stop = queues.stop;
  Queue(master, slave, {}, true, taken).fill();
  if (taken.failed != nullptr) return sys_error(taken.error, subject, taken.failed);
  return {};
}

}  // namespace ckpt::proc
