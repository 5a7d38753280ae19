#include "lib/state/terminals/capture.h"

#include <asm/termbits.h>  // struct termios2, which <termios.h> does not have and does not go together with
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>

#include "lib/base/unique_fd.h"
#include "lib/proc/procfs.h"
#include "lib/proc/terminal_queue.h"
#include "lib/state/files/tree_root.h"

namespace ckpt::capture {

namespace {

using store::Terminal;
using store::TerminalEnd;
using store::TerminalSide;

constexpr unsigned kConsole = 4, kAux = 5, kAuxTty = 0, kAuxPtmx = 2, kSlaveFirst = 136, kSlaveLast = 143;

std::string subject_of(int index) { return fmt::format("/dev/pts/{}", index); }

int slave_index(uint64_t device) {
  unsigned first = major(device);
  return first < kSlaveFirst || first > kSlaveLast ? -1 : static_cast<int>((first - kSlaveFirst) * 256 + minor(device));
}

template <class T>
std::vector<uint8_t> bytes_of(const T& value) {
  auto* at = reinterpret_cast<const uint8_t*>(&value);
  return {at, at + sizeof value};
}

short poll_now(int fd) {
  pollfd poll{fd, POLLIN, 0};
  return ::poll(&poll, 1, 0) == 1 ? poll.revents : short{0};
}

Result<void> read_settings(int master, Terminal& terminal) {
  std::string subject = subject_of(terminal.index);
  termios2 settings{};
  termios locked{};
  winsize size{};
  if (::ioctl(master, TCGETS2, &settings) != 0) return sys_error(subject, "cannot read its settings");
  if (::ioctl(master, TIOCGLCKTRMIOS, &locked) != 0) return sys_error(subject, "cannot read its locked settings");
  if (::ioctl(master, TIOCGWINSZ, &size) != 0) return sys_error(subject, "cannot read its size");
  terminal.settings = bytes_of(settings), terminal.locked_settings = bytes_of(locked);
  terminal.rows = size.ws_row, terminal.columns = size.ws_col;
  terminal.width = size.ws_xpixel, terminal.height = size.ws_ypixel;
  return {};
}

Result<bool> read_flag(int fd, unsigned long request, int index) {
  int value = 0;
  if (::ioctl(fd, request, &value) != 0) return sys_error(subject_of(index), "cannot read its state");
  return value != 0;
}

/// All that the master alone tells.
Result<Terminal> describe_pair(int index, int master) {
  Terminal terminal;
  terminal.index = index;
  CKPT_TRY(read_settings(master, terminal));
  CKPT_TRY_ASSIGN(terminal.locked, read_flag(master, TIOCGPTLCK, index));
  CKPT_TRY_ASSIGN(terminal.packet, read_flag(master, TIOCGPKT, index));
  CKPT_TRY_ASSIGN(terminal.master_exclusive, read_flag(master, TIOCGEXCL, index));
  terminal.slave_closed = (poll_now(master) & POLLHUP) != 0;
  int number = 0;
  if (::ioctl(master, TIOCGSID, &number) == 0 && number > 0) terminal.session = number;
  if (::ioctl(master, TIOCGPGRP, &number) == 0 && number > 0) terminal.foreground = number;
  struct stat st{};
  if (!state::stat_in_tree(subject_of(index), st)) return sys_error(subject_of(index), "cannot stat");
  if (slave_index(st.st_rdev) != index) return fail(Code::kUnsupported, subject_of(index), "belongs to another devpts");
  terminal.uid = st.st_uid, terminal.gid = st.st_gid, terminal.mode = st.st_mode & 07777;
  return terminal;
}

class Finder {
 public:
  Finder(const std::vector<int>& fds, bool frozen, bool adopt) : fds_(fds), frozen_(frozen), adopt_(adopt) {}

  Result<TerminalsFound> run() {
    out_.ends.resize(fds_.size());
    for (int fd : fds_) {
      CKPT_TRY_ASSIGN(auto file, identify_terminal(fd));
      files_.push_back(file.value_or(TerminalFile{}));
    }
    CKPT_TRY(add_masters());
    for (size_t i = 0; i < fds_.size(); ++i) {
      if (files_[i].side != TerminalSide::kMaster) CKPT_TRY(add_slave(i));
    }
    if (frozen_) {
      for (Terminal& terminal : out_.terminals) CKPT_TRY(copy_queues(terminal));
    }
    return std::move(out_);
  }

 private:
  /// While lines are edited nothing tells whether one is being typed, short of taking it.
  bool may_have_input(int index, int master) const {
    termios2 settings{};
    if (::ioctl(master, TCGETS2, &settings) != 0 || (settings.c_lflag & ICANON) != 0) return true;
    for (size_t i = 0; i < fds_.size(); ++i) {
      int waiting = 0;
      const bool is_slave = files_[i].index == index && files_[i].side != TerminalSide::kMaster;
      if (is_slave && !files_[i].hung_up && ::ioctl(fds_[i], FIONREAD, &waiting) == 0 && waiting > 0) return true;
    }
    return false;
  }

  Result<void> add_masters() {
    for (size_t i = 0; i < fds_.size(); ++i) {
      const TerminalFile& file = files_[i];
      if (file.side != TerminalSide::kMaster) continue;
      out_.ends[i].side = TerminalSide::kMaster;
      int discipline = 0;
      if (file.hung_up) {
        out_.refused.emplace_back(i, "the master of a terminal, hung up, which is not supported");
      } else if (::ioctl(fds_[i], TIOCGETD, &discipline) == 0 && discipline != N_TTY) {
        out_.refused.emplace_back(
            i, fmt::format("a terminal with line discipline {}, which is not supported", discipline));
      } else {
        CKPT_TRY_ASSIGN(Terminal terminal, describe_pair(file.index, fds_[i]));
        if (!proc::may_type() && may_have_input(file.index, fds_[i])) {
          out_.refused.emplace_back(i,
                                    "a terminal whose input only CAP_SYS_ADMIN, in the first user namespace, can see "
                                    "and put back (TIOCSTI)");
        }
        out_.ends[i].terminal = static_cast<int>(out_.terminals.size());
        known_[file.index] = out_.terminals.size();
        masters_[file.index] = i;
        out_.terminals.push_back(std::move(terminal));
      }
    }
    return {};
  }

  Result<void> add_slave(size_t i) {
    const TerminalFile& file = files_[i];
    TerminalEnd& end = out_.ends[i];
    end.side = file.side, end.hung_up = file.hung_up;
    auto known = known_.find(file.index);
    if (known == known_.end()) {
      if (!file.hung_up && (!adopt_ || file.index < 0)) return {};
      if (!file.hung_up) {
        CKPT_TRY(adopt(file.index, fds_[i]));
      } else if (file.index < 0) {
        out_.refused.emplace_back(i, "a terminal that has hung up, opened as /dev/tty, which is not supported");
        return {};
      } else {
        CKPT_TRY(add_orphan(file.index, fds_[i]));
      }
      known = known_.find(file.index);
    }
    Terminal& terminal = out_.terminals[known->second];
    end.terminal = static_cast<int>(known->second);
    if (file.hung_up) return {};
    int discipline = 0;
    if (::ioctl(fds_[i], TIOCGETD, &discipline) == 0 && discipline != N_TTY)
      out_.refused.emplace_back(i,
                                fmt::format("a terminal with line discipline {}, which is not supported", discipline));
    CKPT_TRY_ASSIGN(bool exclusive, read_flag(fds_[i], TIOCGEXCL, file.index));
    terminal.slave_exclusive |= exclusive;
    return {};
  }

  /// A terminal whose master is outside, as its slave tells of it.
  Result<void> adopt(int index, int slave) {
    struct stat st {};
    if (::fstat(slave, &st) != 0) return sys_error(subject_of(index), "cannot stat");
    Terminal terminal;
    terminal.index = index;
    CKPT_TRY(read_settings(slave, terminal));
    struct stat named {};  // one that was opened as /dev/tty has another owner
    const bool by_name = state::stat_in_tree(subject_of(index), named) && slave_index(named.st_rdev) == index;
    const struct stat& owner = by_name ? named : st;
    terminal.uid = owner.st_uid, terminal.gid = owner.st_gid, terminal.mode = owner.st_mode & 07777;
    known_[index] = out_.terminals.size();
    out_.adopted.push_back(out_.terminals.size());
    out_.terminals.push_back(std::move(terminal));
    return {};
  }

  /// Slaves whose master is gone: the number stays taken until the last of them is closed.
  Result<void> add_orphan(int index, int fd) {
    struct stat st{};
    if (::fstat(fd, &st) != 0) return sys_error(subject_of(index), "cannot stat");
    Terminal terminal;
    terminal.index = index, terminal.master_open = false;
    terminal.uid = st.st_uid, terminal.gid = st.st_gid, terminal.mode = st.st_mode & 07777;
    known_[index] = out_.terminals.size();
    out_.terminals.push_back(std::move(terminal));
    return {};
  }

  /// A description of ckpt's own: opening a slave that has never been open would leave a trace. Trying to open one that
  /// is locked would break it: pty_open sets TTY_IO_ERROR before it looks at the lock, and every later call fails with
  /// EIO.
  UniqueFd open_slave(const Terminal& terminal, int master, const std::vector<int>& users) const {
    int locked = 1;
    if (::ioctl(master, TIOCGPTLCK, &locked) != 0 || locked != 0) return {};
    if (users.size() < 2 && !terminal.slave_closed) return {};
    return UniqueFd(::ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  }

  Result<void> copy_queues(Terminal& terminal) {
    auto found = masters_.find(terminal.index);
    if (found == masters_.end()) return {};
    int master = fds_[found->second];
    std::vector<int> users{master};
    int slave = -1;
    for (size_t i = 0; i < fds_.size(); ++i) {
      if (files_[i].index != terminal.index || files_[i].hung_up || files_[i].side == TerminalSide::kMaster) continue;
      users.push_back(fds_[i]);
      if ((::fcntl(fds_[i], F_GETFL) & O_ACCMODE) == O_RDWR) slave = fds_[i];
    }
    UniqueFd own = open_slave(terminal, master, users);
    if (own) slave = own.get();
    if (slave < 0 && users.size() + terminal.slave_closed > 1) {
      out_.notes.push_back(fmt::format("{}: it is locked, so what was typed and not read yet is not in the image",
                                       subject_of(terminal.index)));
    }
    CKPT_TRY_ASSIGN(auto queues, proc::copy_terminal_queues(master, slave, users, subject_of(terminal.index)));
    for (auto& line : queues.lines) terminal.lines.push_back({std::move(line.bytes), line.marked});
    terminal.typed = std::move(queues.typed), terminal.output = std::move(queues.output);
    terminal.stop = static_cast<store::OutputStop>(queues.stop);
    return {};
  }

  const std::vector<int>& fds_;
  bool frozen_, adopt_;
  std::vector<TerminalFile> files_;
  std::map<int, size_t> known_;    ///< index -> place in terminals
  std::map<int, size_t> masters_;  ///< index -> place in fds_
  TerminalsFound out_;
};

/// A slave of one devpts: each of them begins with number 0.
struct Slave {
  int index;
  dev_t devpts;
};

std::vector<Slave> open_slaves_of(int pid) {
  constexpr std::string_view kFolder = "/dev/pts/";
  std::vector<Slave> out;
  auto fds = proc::read_fds(pid);
  if (!fds) return out;
  for (const proc::OpenFd& open : *fds) {
    struct stat st {};
    if (open.link.compare(0, kFolder.size(), kFolder) != 0) continue;
    if (::stat(fmt::format("/proc/{}/fd/{}", pid, open.fd).c_str(), &st) == 0)
      out.push_back({slave_index(st.st_rdev), st.st_dev});
  }
  return out;
}

bool uses(int pid, const std::vector<Slave>& open, const Terminal& terminal) {
  struct stat ours {};
  const bool known = state::stat_in_tree(subject_of(terminal.index), ours);
  if (std::any_of(open.begin(), open.end(), [&](const Slave& slave) {
        return slave.index == terminal.index && (!known || slave.devpts == ours.st_dev);
      }))
    return true;
  auto stat = proc::read_stat(pid);
  return stat && terminal.session != 0 && stat->session == terminal.session &&
         slave_index(static_cast<unsigned>(stat->terminal)) == terminal.index;
}

}  // namespace

Result<std::optional<TerminalFile>> identify_terminal(int fd) {
  struct stat st{};
  if (::fstat(fd, &st) != 0) return sys_error("terminal", "cannot stat");
  if (!S_ISCHR(st.st_mode)) return std::optional<TerminalFile>();
  unsigned first = major(st.st_rdev), second = minor(st.st_rdev);
  TerminalFile out;
  if (first == kAux && second == kAuxPtmx) {
    out.side = TerminalSide::kMaster;
    unsigned index = 0;
    if (::ioctl(fd, TIOCGPTN, &index) == 0)
      out.index = static_cast<int>(index);
    else
      out.hung_up = true;
    return std::optional(out);
  }
  bool controlling = first == kAux && second == kAuxTty;
  out.index = slave_index(st.st_rdev);
  if (out.index < 0 && first != kConsole && first != kAux) return std::optional<TerminalFile>();
  unsigned device = 0;
  if (::ioctl(fd, TIOCGDEV, &device) != 0)
    out.hung_up = errno == EIO;
  else if (controlling)
    out.index = slave_index(device);
  if (controlling) out.side = TerminalSide::kControlling;
  return std::optional(out);
}

Result<TerminalsFound> describe_terminals(const std::vector<int>& fds, bool frozen, bool adopt) {
  return Finder(fds, frozen, adopt).run();
}

std::vector<std::pair<int, std::string>> outside_users_of_terminals(const std::vector<Terminal>& terminals,
                                                                    const std::vector<int>& tree) {
  std::vector<std::pair<int, std::string>> out;
  if (terminals.empty()) return out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    int pid = 0;
    std::string name = entry.path().filename().string();
    auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    if (pid == ::getpid() || std::binary_search(tree.begin(), tree.end(), pid)) continue;
    const std::vector<Slave> open = open_slaves_of(pid);
    for (const Terminal& terminal : terminals) {
      if (terminal.master_open && uses(pid, open, terminal))
        out.emplace_back(terminal.index, proc::describe_pid(pid));
    }
  }
  return out;
}

}  // namespace ckpt::capture
