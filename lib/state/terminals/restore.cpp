#include "lib/state/terminals/restore.h"

#include <asm/termbits.h>  // struct termios2, which <termios.h> does not have and does not go together with
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <set>

#include "lib/base/io.h"
#include "lib/proc/terminal_queue.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/mounts/made.h"

namespace ckpt::restore {

namespace {

using store::Terminal;
using store::TerminalEnd;
using store::TerminalSide;

std::string subject_of(const Terminal& terminal) { return fmt::format("/dev/pts/{}", terminal.index); }

Result<void> control(int fd, unsigned long request, const void* argument, const Terminal& terminal, const char* what) {
  if (::ioctl(fd, request, argument) != 0) return sys_error(subject_of(terminal), what);
  return {};
}

/// The kernel gives the lowest number that is free, so the ones below those wanted are held meanwhile. What could not
/// be had is left in `wanted`.
Result<void> allocate_free(std::set<int>& wanted, std::map<int, UniqueFd>& out) {
  std::vector<UniqueFd> others;
  for (auto next = wanted.begin(); next != wanted.end();) {
    UniqueFd master(state::open_in_tree("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK));
    if (!master) return sys_error(-master.get(), "/dev/ptmx", "cannot be opened");
    unsigned number = 0;
    if (::ioctl(master.get(), TIOCGPTN, &number) != 0) return sys_error("/dev/ptmx", "cannot make a terminal");
    const int index = static_cast<int>(number);
    while (next != wanted.end() && *next < index) ++next;
    if (next != wanted.end() && *next == index) {
      out[index] = std::move(master);
      next = wanted.erase(next);
    } else {
      others.push_back(std::move(master));
    }
  }
  return {};
}

Error in_use(int index) { return Error(Code::kBusy, "", fmt::format("terminal /dev/pts/{} is in use", index)); }

/// Another restore may hold a number for a moment, on its way to a higher one.
std::map<int, UniqueFd> allocate(std::set<int> wanted, Reasons& reasons) {
  constexpr int kAttempts = 50;
  std::map<int, UniqueFd> out;
  std::erase_if(wanted, [&](int index) {
    UniqueFd master = state::take_reserved_terminal(index);
    return master && out.emplace(index, std::move(master)).second;
  });
  for (int attempt = 0; attempt < kAttempts && !wanted.empty(); ++attempt) {
    if (attempt > 0) ::usleep(20'000);
    if (auto done = allocate_free(wanted, out); !done) {
      reasons.add(done.error());
      return out;
    }
  }
  for (int index : wanted) reasons.add(in_use(index));
  return out;
}

/// /dev/tty leads to the controlling terminal of whoever opens it: a helper that shares ckpt's descriptors takes
/// `slave` for a moment. It must let go before its end, which would hang up the terminal.
Result<UniqueFd> open_as_controlling(int slave, int flags, const Terminal& terminal) {
  void* memory = ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return sys_error(subject_of(terminal), "cannot open it as /dev/tty");
  Mapping room(memory, sizeof(int));
  int& opened = *static_cast<int*>(memory);
  opened = -ECHILD;
  long helper = ::syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
  if (helper == 0) {
    (void)::signal(SIGHUP, SIG_IGN);
    opened = -EPERM;
    if (::setsid() > 0 && ::ioctl(slave, TIOCSCTTY, 0) == 0) {
      int fd = ::open("/dev/tty", flags | O_CLOEXEC);
      opened = fd < 0 ? -errno : fd;
      (void)::ioctl(slave, TIOCNOTTY);
    }
    ::_exit(0);
  }
  if (helper < 0) return sys_error(subject_of(terminal), "cannot start a helper to open it as /dev/tty");
  while (::waitpid(static_cast<pid_t>(helper), nullptr, 0) < 0 && errno == EINTR) {
  }
  if (opened < 0) return sys_error(-opened, subject_of(terminal), "cannot open it as /dev/tty");
  return UniqueFd(opened);
}

/// One terminal on its way.
class TerminalBuilder {
 public:
  TerminalBuilder(const Terminal& terminal, UniqueFd master) : terminal_(terminal), master_(std::move(master)) {}

  Result<void> begin(bool slave_is_open) {
    int locked = 0;
    CKPT_TRY(control(master_.get(), TIOCSPTLCK, &locked, terminal_, "cannot unlock it"));
    if (slave_is_open || terminal_.slave_closed) {
      CKPT_TRY_ASSIGN(slave_, peer(O_RDWR | O_NONBLOCK));
    }
    return {};
  }

  /// Of every slave opened so far.
  Result<void> hang_up() {
    if (::ioctl(slave_.get(), TIOCVHANGUP) != 0) return sys_error(subject_of(terminal_), "cannot hang it up");
    CKPT_TRY_ASSIGN(slave_, peer(O_RDWR | O_NONBLOCK));
    return {};
  }

  Result<UniqueFd> open(TerminalSide side, int flags) {
    constexpr int kKept = O_ACCMODE | O_NONBLOCK;
    if (side == TerminalSide::kControlling) return open_as_controlling(slave_.get(), flags & kKept, terminal_);
    return peer(flags & kKept);
  }
  Result<UniqueFd> take_master(int flags) {
    UniqueFd out(::fcntl(master_.get(), F_DUPFD_CLOEXEC, 0));
    if (!out || ::fcntl(out.get(), F_SETFL, flags & O_NONBLOCK) != 0)
      return sys_error(subject_of(terminal_), "cannot hand over its master");
    return out;
  }

  int master() const { return master_.get(); }

  Result<void> set_owner() {
    std::string path = subject_of(terminal_);
    const UniqueFd slave(state::open_in_tree(path.c_str(), O_PATH | O_NOFOLLOW));
    if (!slave) return sys_error(-slave.get(), path, "cannot be opened");
    if (::fchownat(slave.get(), "", terminal_.uid, terminal_.gid, AT_EMPTY_PATH) != 0)
      return sys_error(path, "cannot set its owner");
    if (::chmod(fmt::format("/proc/self/fd/{}", slave.get()).c_str(), terminal_.mode) != 0)
      return sys_error(path, "cannot set its mode");
    return {};
  }

  /// The settings that would hinder the others come last.
  Result<void> set_state() {
    if (!terminal_.master_open) return {};
    winsize size{};
    size.ws_row = static_cast<uint16_t>(terminal_.rows), size.ws_col = static_cast<uint16_t>(terminal_.columns);
    size.ws_xpixel = static_cast<uint16_t>(terminal_.width), size.ws_ypixel = static_cast<uint16_t>(terminal_.height);
    CKPT_TRY(control(master_.get(), TCSETS2, terminal_.settings.data(), terminal_, "cannot set it up"));
    CKPT_TRY(control(master_.get(), TIOCSWINSZ, &size, terminal_, "cannot set its size"));
    CKPT_TRY(fill());
    CKPT_TRY(control(master_.get(), TIOCSLCKTRMIOS, terminal_.locked_settings.data(), terminal_,
                     "cannot lock its settings"));
    int on = 1;
    if (terminal_.packet) CKPT_TRY(control(master_.get(), TIOCPKT, &on, terminal_, "cannot set packet mode"));
    if (terminal_.slave_exclusive && slave_)
      CKPT_TRY(control(slave_.get(), TIOCEXCL, nullptr, terminal_, "cannot make it exclusive"));
    if (terminal_.master_exclusive)
      CKPT_TRY(control(master_.get(), TIOCEXCL, nullptr, terminal_, "cannot make it exclusive"));
    if (terminal_.locked) CKPT_TRY(control(master_.get(), TIOCSPTLCK, &on, terminal_, "cannot lock it"));
    return {};
  }

 private:
  Result<UniqueFd> peer(int flags) {
    // Not O_CLOEXEC: this call leaves it in the status flags, where a later look would take it for FD_CLOEXEC.
    UniqueFd out(::ioctl(master_.get(), TIOCGPTPEER, flags | O_NOCTTY));
    if (!out || ::fcntl(out.get(), F_SETFD, FD_CLOEXEC) != 0) return sys_error(subject_of(terminal_), "cannot open it");
    return out;
  }

  Result<void> fill() {
    proc::TerminalQueues queues;
    for (const auto& line : terminal_.lines) queues.lines.push_back({line.bytes, line.marked});
    queues.typed = terminal_.typed, queues.output = terminal_.output;
    queues.stop = static_cast<proc::TerminalQueues::Stop>(terminal_.stop);
    return proc::fill_terminal_queues(master_.get(), slave_ ? slave_.get() : -1, queues, subject_of(terminal_));
  }

  const Terminal& terminal_;
  UniqueFd master_, slave_;
};

using Ends = std::vector<std::pair<TerminalEnd, int>>;

Result<void> make_one(const Terminal& terminal, int place, UniqueFd master, const Ends& ends,
                      const std::function<Result<void>(int)>& take_master, std::vector<UniqueFd>& out) {
  auto visit = [&](auto wanted, auto open) -> Result<void> {
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].first.terminal != place || !wanted(ends[i].first)) continue;
      CKPT_TRY_ASSIGN(out[i], open(ends[i].first.side, ends[i].second));
    }
    return {};
  };
  auto is_slave = [](const TerminalEnd& end) { return end.side != TerminalSide::kMaster; };
  auto cut_off = [&](const TerminalEnd& end) { return is_slave(end) && end.hung_up; };
  bool has_slave = false, has_cut_off = false, has_master = false;
  for (const auto& [end, flags] : ends) {
    has_slave |= end.terminal == place && is_slave(end);
    has_cut_off |= end.terminal == place && cut_off(end);
    has_master |= end.terminal == place && !is_slave(end);
  }
  const bool adopted = terminal.master_open && !has_master;
  if (adopted && !take_master) {
    return fail(Code::kUsage, subject_of(terminal),
                "had its master outside of the tree, and there is nobody to take the new one");
  }
  TerminalBuilder builder(terminal, std::move(master));
  CKPT_TRY(builder.begin(has_slave));
  CKPT_TRY(builder.set_owner());
  CKPT_TRY(visit(cut_off, [&](TerminalSide side, int flags) { return builder.open(side, flags); }));
  if (has_cut_off && terminal.master_open) CKPT_TRY(builder.hang_up());
  CKPT_TRY(visit([&](const TerminalEnd& end) { return is_slave(end) && !end.hung_up; },
                 [&](TerminalSide side, int flags) { return builder.open(side, flags); }));
  CKPT_TRY(visit([&](const TerminalEnd& end) { return !is_slave(end); },
                 [&](TerminalSide, int flags) { return builder.take_master(flags); }));
  CKPT_TRY(builder.set_state());
  if (adopted) CKPT_TRY(take_master(builder.master()));
  return {};  // with the builder the master goes, where it was gone, and hangs up the slaves
}

}  // namespace

void check_terminals(const std::vector<Terminal>& terminals, Reasons& reasons) {
  for (const Terminal& terminal : terminals) {
    struct stat st {};
    if (!state::is_terminal_reserved(terminal.index) && state::stat_in_tree(subject_of(terminal), st))
      reasons.add(in_use(terminal.index));
  }
}

std::vector<UniqueFd> make_terminals(const std::vector<Terminal>& terminals, const Ends& ends, Reasons& reasons,
                                     const std::function<Result<void>(int)>& take_master) {
  std::vector<UniqueFd> out(ends.size());
  std::set<int> wanted;
  for (const Terminal& terminal : terminals) wanted.insert(terminal.index);
  std::map<int, UniqueFd> masters = allocate(std::move(wanted), reasons);
  for (size_t i = 0; i < terminals.size(); ++i) {
    auto master = masters.find(terminals[i].index);
    if (master == masters.end() || !master->second) continue;
    auto made = make_one(terminals[i], static_cast<int>(i), std::move(master->second), ends, take_master, out);
    if (!made) reasons.add(made.error());
  }
  return out;
}

void take_controlling_terminal(int slave, SyscallBatch& batch) {
  batch.add("take the controlling terminal", SYS_ioctl, slave, TIOCSCTTY, 0);
}

void give_up_controlling_terminal(int slave, SyscallBatch& batch) {
  batch.add("give up the controlling terminal", SYS_ioctl, slave, TIOCNOTTY, 0);
}

void set_foreground_group(int group, int slave, RestorerArea& area, SyscallBatch& batch) {
  if (group == 0) return;
  batch.try_add("set the terminal's foreground group", SYS_ioctl, slave, TIOCSPGRP, area.put(group));
}

}  // namespace ckpt::restore
