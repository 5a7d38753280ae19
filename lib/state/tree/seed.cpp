#include "lib/state/tree/seed.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/io.h"
#include "lib/base/threads.h"

namespace ckpt::restore {

namespace {

int g_channel = -1;

struct Orders {
  pid_t worker = 0;
  uint64_t address = 0;
  int area = -1;       ///< its descriptor
  uint32_t count = 0;  ///< numbers that follow
};

/// Plain system calls only: it was cloned without the C library's knowledge. 0 or errno.
int take_over(int channel, const Orders& orders, const int* numbers) {
  const int low = static_cast<int>(::syscall(SYS_pidfd_open, orders.worker, 0));
  const int worker = low < 0 ? -1 : static_cast<int>(::syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, channel));
  if (worker < 0) return errno;
  ::syscall(SYS_close, low);
  for (uint32_t i = 0; i < orders.count; ++i) {
    const int got = static_cast<int>(::syscall(SYS_pidfd_getfd, worker, numbers[i], 0));
    if (got < 0) return errno;
    if (got == numbers[i]) continue;
    if (::syscall(SYS_dup3, got, numbers[i], O_CLOEXEC) < 0) return errno;
    ::syscall(SYS_close, got);
  }
  ::syscall(SYS_close, worker);
  const long place = ::syscall(SYS_mmap, orders.address, RestorerArea::kSize, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, orders.area, 0);
  return place == static_cast<long>(orders.address) ? 0 : errno;
}

constexpr uint32_t kMostNumbers = 1u << 20;

[[noreturn]] void be_seed(int channel) {
  const uint64_t all = ~0ull;
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, nullptr, sizeof all);
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  Orders orders;
  if (::syscall(SYS_recvfrom, channel, &orders, sizeof orders, 0, nullptr, nullptr) != sizeof orders ||
      orders.count > kMostNumbers)
    ::syscall(SYS_exit_group, 1);
  const uint64_t room = uint64_t{orders.count} * sizeof(int) + 1;
  const long memory = ::syscall(SYS_mmap, 0, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory < 0 && memory > -4096) ::syscall(SYS_exit_group, 1);
  auto* numbers = reinterpret_cast<int*>(memory);
  // The channel goes above every number that the worker has, and nothing else stays open.
  constexpr int kAbove = 3;
  int top = kAbove;
  for (uint64_t at = 0; at + 1 < room;) {
    const long got =
        ::syscall(SYS_recvfrom, channel, reinterpret_cast<char*>(numbers) + at, room - 1 - at, 0, nullptr, nullptr);
    if (got <= 0) ::syscall(SYS_exit_group, 1);
    at += static_cast<uint64_t>(got);
  }
  for (uint32_t i = 0; i < orders.count; ++i) top = numbers[i] >= top ? numbers[i] + 1 : top;
  const long moved = ::syscall(SYS_fcntl, channel, F_DUPFD_CLOEXEC, top + 1);
  if (moved < 0) ::syscall(SYS_exit_group, 1);
  ::syscall(SYS_close_range, 0, moved - 1, 0);
  ::syscall(SYS_close_range, moved + 1, ~0u, 0);
  const int error = take_over(static_cast<int>(moved), orders, numbers);
  ::syscall(SYS_sendto, moved, &error, sizeof error, MSG_NOSIGNAL, nullptr, 0);
  ::syscall(SYS_close, moved);
  ::syscall(SYS_munmap, numbers, room);
  for (;;) ::syscall(SYS_pause);
}

Result<std::vector<int>> own_descriptors() {
  std::vector<int> out;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return sys_error("/proc/self/fd", "cannot be read");
  while (const dirent* entry = ::readdir(folder.get())) {
    const int number = entry->d_name[0] == '.' ? -1 : std::atoi(entry->d_name);
    if (number >= 0 && number != ::dirfd(folder.get()) && number != g_channel) out.push_back(number);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

Result<pid_t> plant_seed(bool sibling) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return sys_error("", "cannot make a pair of sockets");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  clone_args args{};
  args.flags = CLONE_CLEAR_SIGHAND | (sibling ? CLONE_PARENT : 0);
  args.exit_signal = sibling ? 0 : SIGCHLD;
  const long got = ::syscall(SYS_clone3, &args, sizeof args);
  if (got == 0) {
    ::syscall(SYS_close, ours.get());  // else its own copy would keep the channel open after ckpt
    be_seed(theirs.get());
  }
  if (got < 0) return fork_error(errno, "process 1", "cannot be created");
  g_channel = ours.release();
  return static_cast<pid_t>(got);
}

bool has_seed() { return g_channel >= 0; }

Result<void> raise_seed(const RestorerArea& area) {
  CKPT_TRY_ASSIGN(const std::vector<int> numbers, own_descriptors());
  const Orders orders{::getpid(), area.address(), area.file(), static_cast<uint32_t>(numbers.size())};
  const ByteSpan list(reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * sizeof(int));
  int error = 0;
  CKPT_TRY(io::write_all(g_channel, ByteSpan(reinterpret_cast<const std::byte*>(&orders), sizeof orders), "process 1"));
  CKPT_TRY(io::write_all(g_channel, list, "process 1"));
  if (::recv(g_channel, &error, sizeof error, 0) != sizeof error) error = ECHILD;
  UniqueFd(std::exchange(g_channel, -1)).reset();
  if (error != 0) return sys_error(error, "process 1", "cannot take over what ckpt has opened");
  return {};
}

}  // namespace ckpt::restore
