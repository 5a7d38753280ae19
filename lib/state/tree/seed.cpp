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
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/state/namespaces/user.h"

namespace ckpt::restore {

namespace {

int g_channel = -1;

struct Orders {
  pid_t worker = 0;
  uint64_t address = 0;
  int area = -1;       ///< its descriptor
  uint32_t count = 0;  ///< numbers that follow
  uint32_t sent = 0;   ///< 1: and then the descriptors themselves; 0: the seed takes them from the worker
};

constexpr uint32_t kSentAtOnce = 64;

/// What a message of descriptors needs.
struct DescriptorMessage {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(kSentAtOnce * sizeof(int))] = {};
  msghdr head{};
  explicit DescriptorMessage(uint32_t count) {
    head.msg_iov = &data, head.msg_iovlen = 1;
    head.msg_control = control, head.msg_controllen = CMSG_SPACE(count * sizeof(int));
  }
};

/// Plain system calls only: it was cloned without the C library's knowledge. 0 or errno.
int receive_descriptors(int channel, const Orders& orders, const int* numbers) {
  for (uint32_t done = 0; done < orders.count;) {
    const uint32_t count = orders.count - done < kSentAtOnce ? orders.count - done : kSentAtOnce;
    DescriptorMessage message(count);
    const long got = ::syscall(SYS_recvmsg, channel, &message.head, MSG_CMSG_CLOEXEC);
    const cmsghdr* head = CMSG_FIRSTHDR(&message.head);
    if (got != 1 || head == nullptr || head->cmsg_len != CMSG_LEN(count * sizeof(int))) return EPIPE;
    int* given = reinterpret_cast<int*>(const_cast<unsigned char*>(CMSG_DATA(head)));
    // They came at the lowest numbers, which may be what others are to have.
    for (uint32_t i = 0; i < count; ++i) {
      const long high = ::syscall(SYS_fcntl, given[i], F_DUPFD_CLOEXEC, channel);
      if (high < 0) return errno;
      ::syscall(SYS_close, given[i]);
      given[i] = static_cast<int>(high);
    }
    for (uint32_t i = 0; i < count; ++i) {
      if (::syscall(SYS_dup3, given[i], numbers[done + i], O_CLOEXEC) < 0) return errno;
      ::syscall(SYS_close, given[i]);
    }
    done += count;
  }
  return 0;
}

int map_area(const Orders& orders) {
  const long place = ::syscall(SYS_mmap, orders.address, RestorerArea::kSize, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, orders.area, 0);
  return place == static_cast<long>(orders.address) ? 0 : errno;
}

int take_over(int channel, const Orders& orders, const int* numbers) {
  if (orders.sent != 0) {
    const int error = receive_descriptors(channel, orders, numbers);
    return error != 0 ? error : map_area(orders);
  }
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
  return map_area(orders);
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

Result<UniqueFd> open_seed_channel() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return sys_error("", "cannot make a pair of sockets");
  g_channel = ends[0];
  return UniqueFd(ends[1]);
}

Result<pid_t> plant_seed(UniqueFd end, bool sibling) {
  clone_args args{};
  args.flags = CLONE_CLEAR_SIGHAND | (sibling ? CLONE_PARENT : 0);
  args.exit_signal = sibling ? 0 : SIGCHLD;
  const long got = ::syscall(SYS_clone3, &args, sizeof args);
  if (got == 0) {
    ::syscall(SYS_close, g_channel);  // else its own copy would keep the channel open after ckpt
    be_seed(end.get());
  }
  if (got < 0) return fork_error(errno, "process 1", "cannot be created");
  return static_cast<pid_t>(got);
}

bool has_seed() { return g_channel >= 0; }

namespace {

Result<void> send_descriptors(const std::vector<int>& numbers) {
  for (size_t done = 0; done < numbers.size();) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(numbers.size() - done, kSentAtOnce));
    DescriptorMessage message(count);
    cmsghdr* head = CMSG_FIRSTHDR(&message.head);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(head), numbers.data() + done, count * sizeof(int));
    ssize_t sent = 0;
    while ((sent = ::sendmsg(g_channel, &message.head, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
    }
    if (sent != 1)
      return sys_error("process 1", "cannot be sent what ckpt has opened (io_uring cannot)");
    done += count;
  }
  return {};
}

}  // namespace

Result<void> raise_seed(const RestorerArea& area) {
  CKPT_TRY_ASSIGN(const std::vector<int> numbers, own_descriptors());
  const state::TreeUser* user = state::tree_user();
  const bool sends = user != nullptr && user->birth;
  const Orders orders{::getpid(), area.address(), area.file(), static_cast<uint32_t>(numbers.size()), sends ? 1u : 0u};
  const ByteSpan list(reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * sizeof(int));
  int error = 0;
  CKPT_TRY(io::write_all(g_channel, ByteSpan(reinterpret_cast<const std::byte*>(&orders), sizeof orders), "process 1"));
  CKPT_TRY(io::write_all(g_channel, list, "process 1"));
  if (sends) CKPT_TRY(send_descriptors(numbers));
  if (::recv(g_channel, &error, sizeof error, 0) != sizeof error) error = ECHILD;
  UniqueFd(std::exchange(g_channel, -1)).reset();
  if (error != 0) return sys_error(error, "process 1", "cannot take over what ckpt has opened");
  return {};
}

}  // namespace ckpt::restore
