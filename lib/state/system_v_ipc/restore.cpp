#include "lib/state/system_v_ipc/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "lib/base/io.h"

namespace ckpt::restore {

namespace {

using store::IpcIdentity;

/// Type of the empty messages that are sent for the sake of the notes about it.
constexpr long kToken = std::numeric_limits<long>::max();

constexpr const char* kNames[] = {"shared memory segment", "semaphore set", "message queue"};
constexpr const char* kNextIds[] = {"/proc/sys/kernel/shm_next_id", "/proc/sys/kernel/sem_next_id",
                                    "/proc/sys/kernel/msg_next_id"};

std::string subject_of(size_t kind, const IpcIdentity& identity) {
  return fmt::format("{} {} (key {:#x})", kNames[kind], identity.id, static_cast<uint32_t>(identity.key));
}

/// Needs CONFIG_CHECKPOINT_RESTORE. The kernel forgets it with the next object that anybody makes: other restores wait
/// until the result is closed.
Result<UniqueFd> choose_next_id(size_t kind, int id) {
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(kNextIds[kind], O_WRONLY));
  while (::flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  std::string text = std::to_string(id);
  if (::write(fd.get(), text.data(), text.size()) < 0) return sys_error(kNextIds[kind], "cannot choose an id");
  return fd;
}

template <class Permissions>
void set_owner(Permissions& permissions, const IpcIdentity& identity) {
  permissions.uid = identity.uid, permissions.gid = identity.gid;
  permissions.mode = static_cast<decltype(permissions.mode)>(identity.mode);
}

Error taken(size_t kind, const IpcIdentity& identity) {
  return Error(Code::kBusy, subject_of(kind, identity), "its id belongs to another object now");
}

/// What has exactly this id now.
struct Found {
  bool exists = false, same = false;
};

Found find_segment(const store::SharedSegment& segment) {
  shmid_ds state{};
  if (::shmctl(segment.identity.id, IPC_STAT, &state) != 0) return {};
  return {true, state.shm_perm.__key == segment.identity.key && state.shm_segsz == segment.size &&
                    state.shm_perm.uid == segment.identity.uid};
}

Found find_set(const store::SemaphoreSet& set) {
  semid_ds state{};
  if (::semctl(set.identity.id, 0, IPC_STAT, &state) < 0) return {};
  return {true, state.sem_perm.__key == set.identity.key && state.sem_nsems == set.semaphores.size() &&
                    state.sem_perm.uid == set.identity.uid};
}

Found find_queue(const store::IpcQueue& queue) {
  msqid_ds state{};
  if (::msgctl(queue.identity.id, IPC_STAT, &state) != 0) return {};
  return {true, state.msg_perm.__key == queue.identity.key && state.msg_perm.uid == queue.identity.uid};
}

Result<void> fill_set(const store::SemaphoreSet& set) {
  std::string subject = subject_of(1, set.identity);
  semid_ds state{};
  set_owner(state.sem_perm, set.identity);
  if (::semctl(set.identity.id, 0, IPC_SET, &state) != 0) return sys_error(subject, "cannot set its owner");
  std::vector<unsigned short> values;
  for (const auto& semaphore : set.semaphores) values.push_back(static_cast<unsigned short>(semaphore.value));
  if (::semctl(set.identity.id, 0, SETALL, values.data()) != 0) return sys_error(subject, "cannot set its values");
  return {};
}

Result<void> empty_queue(int id, const std::string& subject) {
  std::vector<char> room(sizeof(long));
  while (::msgrcv(id, room.data(), 0, 0, IPC_NOWAIT | MSG_NOERROR) >= 0) {
  }
  if (errno != ENOMSG) return sys_error(subject, "cannot be emptied");
  return {};
}

Result<void> fill_queue(const store::IpcQueue& queue) {
  std::string subject = subject_of(2, queue.identity);
  CKPT_TRY(empty_queue(queue.identity.id, subject));
  msqid_ds state{};
  set_owner(state.msg_perm, queue.identity);
  state.msg_qbytes = queue.max_bytes;
  if (::msgctl(queue.identity.id, IPC_SET, &state) != 0) return sys_error(subject, "cannot set its owner and limit");
  std::vector<char> room;
  for (const auto& message : queue.messages) {
    room.resize(sizeof(long) + message.bytes.size());
    long type = message.type;
    std::memcpy(room.data(), &type, sizeof type);
    std::copy(message.bytes.begin(), message.bytes.end(), room.begin() + sizeof type);
    if (::msgsnd(queue.identity.id, room.data(), message.bytes.size(), IPC_NOWAIT) != 0)
      return sys_error(subject, "cannot be filled");
  }
  return {};
}

Result<void> set_segment(const store::SharedSegment& segment) {
  std::string subject = subject_of(0, segment.identity);
  shmid_ds state{};
  set_owner(state.shm_perm, segment.identity);
  if (::shmctl(segment.identity.id, IPC_SET, &state) != 0) return sys_error(subject, "cannot set its owner");
  if (::shmctl(segment.identity.id, segment.locked ? SHM_LOCK : SHM_UNLOCK, nullptr) != 0)
    return sys_error(subject, "cannot be locked into memory");
  return {};
}

void remove(size_t kind, int id) {
  if (kind == 0) (void)::shmctl(id, IPC_RMID, nullptr);
  if (kind == 1) (void)::semctl(id, 0, IPC_RMID);
  if (kind == 2) (void)::msgctl(id, IPC_RMID, nullptr);
}

}  // namespace

namespace {

/// `find(key)` is not asked for IPC_PRIVATE: it would make an object.
template <class Find>
Result<void> check_object(size_t kind, const IpcIdentity& identity, Found found, Find find) {
  if (found.exists) return found.same ? Result<void>() : Result<void>(taken(kind, identity));
  if (identity.key != IPC_PRIVATE && find(identity.key) >= 0)
    return fail(Code::kBusy, subject_of(kind, identity), "its key belongs to another object now");
  return {};
}

}  // namespace

void check_ipc(const store::SystemVIpc& image, Reasons& reasons) {
  auto note = [&](Result<void> done) {
    if (!done) reasons.add(done.error());
  };
  for (const auto& segment : image.segments)
    note(check_object(0, segment.identity, find_segment(segment), [](key_t key) { return ::shmget(key, 0, 0); }));
  for (const auto& set : image.sets)
    note(check_object(1, set.identity, find_set(set), [](key_t key) { return ::semget(key, 0, 0); }));
  for (const auto& queue : image.queues)
    note(check_object(2, queue.identity, find_queue(queue), [](key_t key) { return ::msgget(key, 0); }));
}

IpcObjects::~IpcObjects() {
  for (const Made& made : made_) remove(static_cast<size_t>(made.kind), made.id);
}

/// Another program may make an object just after the id was chosen, and get it, or have one in its place for a moment:
/// then once more.
template <class Make>
Result<void> IpcObjects::make_object(Kind kind, const IpcIdentity& wanted, Make make) {
  constexpr int kTries = 30;
  constexpr useconds_t kPause = 1'000;
  auto index = static_cast<size_t>(kind);
  for (int i = 0; i < kTries; ++i) {
    CKPT_TRY_ASSIGN(UniqueFd chosen, choose_next_id(index, wanted.id));
    const int made = make(IPC_CREAT | IPC_EXCL | static_cast<int>(wanted.mode));
    if (made < 0 && errno == EEXIST)
      return fail(Code::kBusy, subject_of(index, wanted), "its key belongs to another object now");
    if (made < 0) return sys_error(subject_of(index, wanted), "cannot be made");
    if (made == wanted.id) {
      made_.push_back({kind, made});
      return {};
    }
    remove(index, made);
    chosen.reset();
    ::usleep(kPause);
  }
  return taken(index, wanted);
}

Result<void> IpcObjects::make_segment(const store::SharedSegment& segment) {
  Found found = find_segment(segment);
  if (found.exists) return found.same ? Result<void>() : Result<void>(taken(0, segment.identity));
  return make_object(Kind::kSegment, segment.identity,
                     [&](int flags) { return ::shmget(segment.identity.key, segment.size, flags); });
}

Result<void> IpcObjects::make_set(const store::SemaphoreSet& set) {
  Found found = find_set(set);
  if (found.exists) return found.same ? Result<void>() : Result<void>(taken(1, set.identity));
  return make_object(Kind::kSet, set.identity, [&](int flags) {
    return ::semget(set.identity.key, static_cast<int>(set.semaphores.size()), flags);
  });
}

Result<void> IpcObjects::make_queue(const store::IpcQueue& queue) {
  Found found = find_queue(queue);
  if (found.exists) return found.same ? Result<void>() : Result<void>(taken(2, queue.identity));
  return make_object(Kind::kQueue, queue.identity, [&](int flags) { return ::msgget(queue.identity.key, flags); });
}

void IpcObjects::make(const store::SystemVIpc& image, Reasons& reasons) {
  image_ = &image;
  auto note = [&](Result<void> done) {
    if (!done) reasons.add(done.error());
  };
  for (const auto& segment : image.segments) note(make_segment(segment));
  for (const auto& set : image.sets) note(make_set(set));
  for (const auto& queue : image.queues) note(make_queue(queue));
}

Result<void> IpcObjects::set_back() {
  if (image_ == nullptr) return {};
  for (const auto& segment : image_->segments) CKPT_TRY(set_segment(segment));
  for (const auto& set : image_->sets) CKPT_TRY(fill_set(set));
  for (const auto& queue : image_->queues) CKPT_TRY(fill_queue(queue));
  return {};
}

Result<void> IpcObjects::keep() {
  made_.clear();
  if (image_ == nullptr) return {};
  for (const auto& queue : image_->queues) {
    long room = 0;
    if (::msgrcv(queue.identity.id, &room, 0, kToken, IPC_NOWAIT) < 0 && errno != ENOMSG)
      return sys_error(subject_of(2, queue.identity), "cannot be cleared of a token");
  }
  for (const auto& segment : image_->segments) {
    if (segment.destroyed && ::shmctl(segment.identity.id, IPC_RMID, nullptr) != 0 && errno != EIDRM && errno != EINVAL)
      return sys_error(subject_of(0, segment.identity), "cannot be removed, as it was");
  }
  return {};
}

Result<AttachedSegment> AttachedSegment::attach(const store::SharedSegment& segment) {
  void* memory = ::shmat(segment.identity.id, nullptr, 0);
  if (memory == reinterpret_cast<void*>(-1)) return sys_error(subject_of(0, segment.identity), "cannot be attached");
  constexpr uint64_t kPage = 4096;
  return AttachedSegment(static_cast<std::byte*>(memory), (segment.size + kPage - 1) / kPage * kPage);
}

AttachedSegment::~AttachedSegment() {
  if (memory_ != nullptr) (void)::shmdt(memory_);
}

Result<UniqueFd> open_to_fill(const store::SharedSegment& segment) {
  CKPT_TRY_ASSIGN(AttachedSegment attached, AttachedSegment::attach(segment));
  auto start = reinterpret_cast<uint64_t>(attached.data());
  CKPT_TRY_ASSIGN(UniqueFd out,
                  io::open_file(fmt::format("/proc/self/map_files/{:x}-{:x}", start, start + attached.size()), O_RDWR));
  if (::fallocate(out.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(attached.size())) != 0)
    return sys_error(subject_of(0, segment.identity), "cannot be emptied");
  return out;
}

void attach_segment(const store::SharedSegment& segment, uint64_t address, bool read_only, SyscallBatch& batch) {
  batch.add("attach shared memory", SYS_shmat, segment.identity.id, address, read_only ? SHM_RDONLY : 0);
}

void claim_ipc(const store::SystemVIpc& image, int pid, const std::vector<int>& pids, RestorerArea& area,
               SyscallBatch& batch) {
  for (const auto& set : image.sets) {
    for (size_t i = 0; i < set.semaphores.size(); ++i) {
      if (set.semaphores[i].pid != pid) continue;
      batch.add("set a semaphore", SYS_semctl, set.identity.id, static_cast<int>(i), SETVAL, set.semaphores[i].value);
    }
  }
  for (const auto& queue : image.queues) {
    bool sender_is_here = std::binary_search(pids.begin(), pids.end(), queue.sender);
    if (queue.sender != pid && (sender_is_here || queue.receiver != pid)) continue;
    batch.add("send a token", SYS_msgsnd, queue.identity.id, area.put(kToken), 0, IPC_NOWAIT);
  }
}

namespace {

constexpr int kMostValue = 32767;  // SEMVMX

/// Two operations that leave the value as it is. The one that lowers it waits for nothing.
void put_pair(const store::SemaphoreSet& set, size_t semaphore, int change, unsigned flags, RestorerArea& area,
              SyscallBatch& batch) {
  const auto number = static_cast<unsigned short>(semaphore);
  const auto by = static_cast<short>(change);
  sembuf with{number, static_cast<short>(-by), static_cast<short>(flags | IPC_NOWAIT)}, back{number, by, IPC_NOWAIT};
  const bool raise_first = set.semaphores[semaphore].value < std::abs(change);
  const sembuf& up = change < 0 ? with : back;
  const sembuf& down = change < 0 ? back : with;
  const sembuf both[] = {raise_first ? up : down, raise_first ? down : up};
  batch.add("adjust a semaphore", SYS_semop, set.identity.id, area.put(both), 2);
}

/// The kernel adds what an operation takes away to what it would add at the end, and the other way round.
void put_change(const store::SemaphoreSet& set, size_t semaphore, int change, RestorerArea& area,
                SyscallBatch& batch) {
  constexpr int kAtOnce = kMostValue / 2;  // a value is that far from one of its bounds
  while (change != 0) {
    const int part = std::clamp(change, -kAtOnce, kAtOnce);
    put_pair(set, semaphore, part, SEM_UNDO, area, batch);
    change -= part;
  }
}

}  // namespace

void adjust_semaphores(const store::SystemVIpc& image, int process, RestorerArea& area, SyscallBatch& batch) {
  for (const auto& adjustments : image.adjustments) {
    if (adjustments.process != process) continue;
    const store::SemaphoreSet& set = image.sets[static_cast<size_t>(adjustments.set)];
    for (size_t i = 0; i < adjustments.changes.size(); ++i) put_change(set, i, adjustments.changes[i], area, batch);
  }
}

namespace {

/// Whoever adjusted a semaphore is the last to have used it.
bool is_adjusted(const store::SystemVIpc& image, size_t set, size_t semaphore) {
  return std::any_of(image.adjustments.begin(), image.adjustments.end(), [&](const auto& adjustments) {
    return static_cast<size_t>(adjustments.set) == set && adjustments.changes[semaphore] != 0;
  });
}

}  // namespace

void finish_claims(const store::SystemVIpc& image, int pid, RestorerArea& area, SyscallBatch& batch) {
  for (size_t k = 0; k < image.sets.size(); ++k) {
    const store::SemaphoreSet& set = image.sets[k];
    for (size_t i = 0; i < set.semaphores.size(); ++i) {
      if (set.semaphores[i].pid == pid && is_adjusted(image, k, i)) put_pair(set, i, 1, 0, area, batch);
    }
  }
  for (const auto& queue : image.queues) {
    if (queue.receiver != pid) continue;
    batch.add("receive a token", SYS_msgrcv, queue.identity.id, area.put(kToken), 0, kToken, IPC_NOWAIT);
  }
}

}  // namespace ckpt::restore
