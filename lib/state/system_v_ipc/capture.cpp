#include "lib/state/system_v_ipc/capture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lib/base/io.h"
#include "lib/proc/host.h"
#include "lib/proc/procfs.h"

namespace ckpt::capture {

namespace {

using store::IpcIdentity;
constexpr uint64_t kListLimit = 256 << 20;

/// A table of /proc/sysvipc: a line of titles, then one of numbers for each object.
Result<std::vector<std::vector<std::string_view>>> rows_of(std::string_view text, size_t columns, const char* what) {
  std::vector<std::vector<std::string_view>> out;
  for (bool title = true; !text.empty(); title = false) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (title) continue;
    std::vector<std::string_view> row;
    while ((end = line.find_first_not_of(' ')) != std::string_view::npos) {
      line.remove_prefix(end);
      end = std::min(line.find(' '), line.size());
      row.push_back(line.substr(0, end));
      line.remove_prefix(end);
    }
    if (row.size() < columns) return fail(Code::kIo, what, "is not in the form that this ckpt knows");
    out.push_back(std::move(row));
  }
  return out;
}

template <class T>
T number(std::string_view text, int base = 10) {
  T out{};
  std::from_chars(text.data(), text.data() + text.size(), out, base);
  return out;
}

bool holds(const std::vector<int>& pids, int pid) { return std::binary_search(pids.begin(), pids.end(), pid); }

/// `owner`: the column of the uid.
IpcIdentity identity_of(const std::vector<std::string_view>& row, size_t owner) {
  IpcIdentity out;
  out.key = number<int32_t>(row[0]), out.id = number<int>(row[1]);
  out.mode = number<uint32_t>(row[2], 8) & 0777;
  out.uid = number<uint32_t>(row[owner]), out.gid = number<uint32_t>(row[owner + 1]);
  return out;
}

Result<void> add_segments(const std::vector<int>& pids, const std::set<int>& attached, store::SystemVIpc& out) {
  enum { kSize = 3, kCreator = 4, kUid = 7, kColumns = 14 };
  const char* path = "/proc/sysvipc/shm";
  CKPT_TRY_ASSIGN(std::string text, io::read_file(path, kListLimit));
  CKPT_TRY_ASSIGN(auto rows, rows_of(text, kColumns, path));
  for (const auto& row : rows) {
    store::SharedSegment segment;
    segment.identity = identity_of(row, kUid);
    if (attached.count(segment.identity.id) == 0 && !holds(pids, number<int>(row[kCreator]))) continue;
    segment.size = number<uint64_t>(row[kSize]);
    auto mode = number<uint32_t>(row[2], 8);
    segment.destroyed = (mode & SHM_DEST) != 0, segment.locked = (mode & SHM_LOCKED) != 0;
    out.segments.push_back(segment);
  }
  return {};
}

/// Whether a process may read or change what is theirs: by its own rights, whatever ckpt's are.
bool may_use(const proc::Status& process, const IpcIdentity& identity, unsigned creator, unsigned creator_group) {
  constexpr int kEffective = 1, kIpcOwner = 15;
  if ((process.cap_effective >> kIpcOwner & 1) != 0 && proc::is_within_reach("ipc")) return true;
  auto in_group = [&](unsigned gid) {
    return process.gid[kEffective] == gid ||
           std::find(process.groups.begin(), process.groups.end(), gid) != process.groups.end();
  };
  const unsigned uid = process.uid[kEffective];
  const unsigned shift = uid == identity.uid || uid == creator                    ? 6
                         : in_group(identity.gid) || in_group(creator_group) ? 3
                                                                             : 0;
  return (identity.mode >> shift & 7) != 0;
}

/// One that ckpt may not read: other users have theirs side by side with ours.
bool may_be_used(const std::vector<int>& pids, const IpcIdentity& identity, unsigned creator, unsigned creator_group) {
  return std::any_of(pids.begin(), pids.end(), [&](int pid) {
    const auto status = proc::read_status(pid, pid);
    return !status || may_use(*status, identity, creator, creator_group);
  });
}

Result<void> add_sets(const std::vector<int>& pids, const std::set<int>& adjusted, store::SystemVIpc& out) {
  enum { kCount = 3, kUid = 4, kCreator = 6, kCreatorGroup = 7, kColumns = 10 };
  const char* path = "/proc/sysvipc/sem";
  CKPT_TRY_ASSIGN(std::string text, io::read_file(path, kListLimit));
  CKPT_TRY_ASSIGN(auto rows, rows_of(text, kColumns, path));
  for (const auto& row : rows) {
    store::SemaphoreSet set;
    set.identity = identity_of(row, kUid);
    int id = set.identity.id;
    std::vector<unsigned short> values(number<size_t>(row[kCount]));
    if (::semctl(id, 0, GETALL, values.data()) < 0) {
      const int error = errno;
      if (error == EIDRM || error == EINVAL) continue;  // removed meanwhile: by nobody of the tree
      if (error == EACCES && !may_be_used(pids, set.identity, number<unsigned>(row[kCreator]),
                                          number<unsigned>(row[kCreatorGroup])))
        continue;
      return sys_error(error, fmt::format("semaphore set {}", id), "cannot be read");
    }
    bool ours = adjusted.count(id) != 0;
    for (size_t i = 0; i < values.size(); ++i) {
      int pid = ::semctl(id, static_cast<int>(i), GETPID);
      set.semaphores.push_back({values[i], std::max(pid, 0)});
      ours |= holds(pids, pid);
    }
    if (ours) out.sets.push_back(std::move(set));
  }
  return {};
}

/// MSG_COPY takes nothing out, and changes neither time nor process of the last receipt.
Result<void> copy_messages(size_t count, store::IpcQueue& queue) {
  constexpr uint64_t kSmall = 4096;
  CKPT_TRY_ASSIGN(std::string limit, io::read_file("/proc/sys/kernel/msgmax", kSmall));
  std::vector<char> room(sizeof(long) + std::strtoull(limit.c_str(), nullptr, 10));
  for (size_t i = 0; i < count; ++i) {
    ssize_t n = ::msgrcv(queue.identity.id, room.data(), room.size() - sizeof(long), static_cast<long>(i),
                         IPC_NOWAIT | MSG_COPY);
    if (n < 0 && errno == ENOMSG) return {};
    if (n < 0) return sys_error(fmt::format("message queue {}", queue.identity.id), "cannot be read");
    const char* bytes = room.data() + sizeof(long);
    queue.messages.push_back({*reinterpret_cast<const long*>(room.data()), {bytes, bytes + n}});
  }
  return {};
}

Result<void> add_queues(const std::vector<int>& pids, store::SystemVIpc& out) {
  enum { kMessages = 4, kSender = 5, kReceiver = 6, kUid = 7, kColumns = 14 };
  const char* path = "/proc/sysvipc/msg";
  CKPT_TRY_ASSIGN(std::string text, io::read_file(path, kListLimit));
  CKPT_TRY_ASSIGN(auto rows, rows_of(text, kColumns, path));
  for (const auto& row : rows) {
    store::IpcQueue queue;
    queue.sender = number<int>(row[kSender]), queue.receiver = number<int>(row[kReceiver]);
    if (!holds(pids, queue.sender) && !holds(pids, queue.receiver)) continue;
    queue.identity = identity_of(row, kUid);
    msqid_ds state{};
    if (::msgctl(queue.identity.id, IPC_STAT, &state) != 0)
      return sys_error(fmt::format("message queue {}", queue.identity.id), "cannot be read");
    queue.max_bytes = state.msg_qbytes;
    CKPT_TRY(copy_messages(number<size_t>(row[kMessages]), queue));
    out.queues.push_back(std::move(queue));
  }
  return {};
}

}  // namespace

Result<store::SystemVIpc> describe_ipc(const std::vector<int>& pids, const std::set<int>& attached,
                                       const std::set<int>& adjusted) {
  store::SystemVIpc out;
  CKPT_TRY(add_segments(pids, attached, out));
  CKPT_TRY(add_sets(pids, adjusted, out));
  CKPT_TRY(add_queues(pids, out));
  return out;
}

Result<size_t> count_ipc() {
  size_t out = 0;
  for (const char* path : {"/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"}) {
    CKPT_TRY_ASSIGN(const std::string text, io::read_file(path, kListLimit));
    CKPT_TRY_ASSIGN(const auto rows, rows_of(text, 1, path));
    out += rows.size();
  }
  return out;
}

Result<bool> have_same_undo(int left, int right) {
  const long order = ::syscall(SYS_kcmp, left, right, KCMP_SYSVSEM, 0, 0);
  if (order < 0) return sys_error(fmt::format("process {}", right), "cannot tell whether it uses SEM_UNDO");
  return order == 0;
}

Result<bool> may_have_undo(int tid) {
  // A first thread gives a process a list, ckpt too: this one lets go of it, for "none" equals "none".
  if (::unshare(CLONE_SYSVSEM) != 0) return sys_error("ckpt", "cannot let go of its semaphore adjustments");
  CKPT_TRY_ASSIGN(const bool none, have_same_undo(::gettid(), tid));
  if (none) return false;
  CKPT_TRY_ASSIGN(std::string text, io::read_file("/proc/sysvipc/sem", kListLimit));
  return std::count(text.begin(), text.end(), '\n') > 1;
}

Result<UniqueFd> open_segment(int pid, uint64_t start, uint64_t end) {
  return io::open_file(fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, start, end), O_RDONLY);
}

Result<UniqueFd> copy_segment(const store::SharedSegment& segment) {
  std::string subject = fmt::format("shared memory segment {}", segment.identity.id);
  UniqueFd out(::memfd_create("segment", MFD_CLOEXEC));
  if (!out) return sys_error(subject, "no memory for a copy");
  void* memory = ::shmat(segment.identity.id, nullptr, SHM_RDONLY);
  if (memory == reinterpret_cast<void*>(-1)) return sys_error(subject, "cannot be read");
  auto copied = io::pwrite_all(out.get(), {static_cast<const std::byte*>(memory), segment.size}, 0, subject);
  (void)::shmdt(memory);
  CKPT_TRY(std::move(copied));
  return out;
}

}  // namespace ckpt::capture
