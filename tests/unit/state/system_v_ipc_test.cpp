// System V objects made here, described, removed, and made again; or still there, and set back.
#include "lib/state/system_v_ipc/capture.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "lib/base/io.h"
#include "lib/proc/procfs.h"
#include "lib/state/system_v_ipc/restore.h"
#include "lib/state/tree/child.h"
#include "tests/support/free_pid.h"
#include "tests/support/sanitized.h"
#include "tests/support/skip.h"

using namespace ckpt;

namespace {

bool may_choose_ids() {
  if (::geteuid() == 0 && ::access("/proc/sys/kernel/shm_next_id", W_OK) == 0) return true;
  ckpt::test::skip("needs root and CONFIG_CHECKPOINT_RESTORE");
  return false;
}

/// Removes them at the end, whoever made them last.
struct Ids {
  ~Ids() {
    (void)::shmctl(segment, IPC_RMID, nullptr);
    (void)::semctl(set, 0, IPC_RMID);
    (void)::msgctl(queue, IPC_RMID, nullptr);
  }
  int segment = -1, set = -1, queue = -1;
};

void send(int queue, long type, const std::string& text) {
  struct {
    long type;
    char bytes[4000];
  } message{type, {}};
  std::memcpy(message.bytes, text.data(), text.size());
  REQUIRE(::msgsnd(queue, &message, text.size(), IPC_NOWAIT) == 0);
}

Ids make_some(key_t key) {
  Ids ids;
  ids.segment = ::shmget(key, 5000, IPC_CREAT | IPC_EXCL | 0640);
  ids.set = ::semget(key, 3, IPC_CREAT | IPC_EXCL | 0600);
  ids.queue = ::msgget(key, IPC_CREAT | IPC_EXCL | 0606);
  REQUIRE(ids.segment >= 0);
  REQUIRE(ids.set >= 0);
  REQUIRE(ids.queue >= 0);
  unsigned short values[3] = {0, 7, 32767};
  REQUIRE(::semctl(ids.set, 0, SETALL, values) == 0);
  send(ids.queue, 5, "first");
  send(ids.queue, 3, "");
  send(ids.queue, 9, std::string(3000, 'z'));
  return ids;
}

store::SystemVIpc describe() {
  auto found = capture::describe_ipc({::getpid()}, {});
  REQUIRE_MESSAGE(found, found.error().text());
  return *found;
}

key_t some_key(int salt) { return static_cast<key_t>(0x43500000 + (::getpid() & 0xffff) * 8 + salt); }

}  // namespace

TEST_CASE("ipc: segments, semaphores and messages come back under their ids and keys") {
  if (!may_choose_ids()) return;
  Ids ids = make_some(some_key(0));
  shmid_ds owner{};
  REQUIRE(::shmctl(ids.segment, IPC_STAT, &owner) == 0);
  owner.shm_perm.uid = 1234, owner.shm_perm.gid = 77;
  REQUIRE(::shmctl(ids.segment, IPC_SET, &owner) == 0);
  auto before = describe();
  REQUIRE(before.segments.size() == 1);
  REQUIRE(before.sets.size() == 1);
  REQUIRE(before.queues.size() == 1);
  CHECK(before.segments[0].size == 5000);
  CHECK(before.segments[0].identity.uid == 1234);
  CHECK(before.queues[0].messages.size() == 3);
  CHECK(before.queues[0].messages[2].bytes.size() == 3000);
  CHECK(describe() == before);
  { Ids gone = ids; }
  CHECK(describe() == store::SystemVIpc{});
  {
    restore::Reasons reasons;
    restore::IpcObjects dropped;
    dropped.make(before, reasons);
    REQUIRE(reasons.verdict(""));
  }
  CHECK(describe() == store::SystemVIpc{});

  restore::Reasons reasons;
  restore::IpcObjects objects;
  objects.make(before, reasons);
  REQUIRE(reasons.verdict(""));
  REQUIRE(objects.set_back());
  REQUIRE(objects.keep());
  before.queues[0].receiver = 0;
  CHECK(describe() == before);
  char text[8000];
  CHECK(::msgrcv(ids.queue, text, sizeof text - 8, -4, IPC_NOWAIT) == 0);
}

TEST_CASE("ipc: what survived is set back to the image; another object with the id or the key is a reason") {
  if (!may_choose_ids()) return;
  Ids ids = make_some(some_key(1));
  auto before = describe();
  unsigned short values[3] = {1, 1, 1};
  REQUIRE(::semctl(ids.set, 0, SETALL, values) == 0);
  char text[8000];
  REQUIRE(::msgrcv(ids.queue, text, sizeof text - 8, 0, IPC_NOWAIT) == 5);
  send(ids.queue, 1, "later");
  {
    restore::Reasons reasons;
    restore::IpcObjects objects;
    objects.make(before, reasons);
    REQUIRE(reasons.verdict(""));
    REQUIRE(objects.set_back());
    before.queues[0].receiver = ::getpid();
    CHECK(describe() == before);
  }
  CHECK(describe() == before);  // what was not made here is not removed

  auto other = before;
  other.segments[0].size = 9000, other.sets[0].semaphores.pop_back(), other.queues[0].identity.key = 99;
  restore::Reasons reasons;
  {
    restore::IpcObjects objects;
    objects.make(other, reasons);
  }
  CHECK(reasons.size() == 3);
  auto verdict = reasons.verdict("");
  REQUIRE_FALSE(verdict);
  CHECK(verdict.error().code == Code::kBusy);

  other = before;
  other.segments[0].identity.id += 32768, other.sets[0].identity.id += 32768, other.queues[0].identity.id += 32768;
  restore::Reasons keys;
  {
    restore::IpcObjects objects;
    objects.make(other, keys);
  }
  CHECK(keys.size() == 3);
  CHECK(describe() == before);
}

TEST_CASE("ipc: the content of a segment is read through a mapping without a trace, and written back") {
  if (ckpt::test::kThreadSanitized)
    return ckpt::test::skip("the thread sanitizer has threads and addresses of its own");
  if (!may_choose_ids()) return;
  Ids ids;
  ids.segment = ::shmget(IPC_PRIVATE, 10000, 0600);
  auto* memory = static_cast<char*>(::shmat(ids.segment, nullptr, 0));
  std::memset(memory, 'm', 10000);
  REQUIRE(::shmctl(ids.segment, IPC_RMID, nullptr) == 0);
  auto before = describe();
  REQUIRE(before.segments.size() == 1);
  CHECK(before.segments[0].destroyed);
  shmid_ds state{}, after{};
  REQUIRE(::shmctl(ids.segment, IPC_STAT, &state) == 0);
  auto start = reinterpret_cast<uint64_t>(memory);
  auto fd = capture::open_segment(::getpid(), start, start + 12288);
  REQUIRE_MESSAGE(fd, fd.error().text());
  std::vector<std::byte> bytes(10000);
  REQUIRE(io::pread_exact(fd->get(), bytes, 0, ""));
  CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{'m'}; }));
  REQUIRE(::shmctl(ids.segment, IPC_STAT, &after) == 0);
  CHECK(std::memcmp(&state, &after, sizeof state) == 0);
  auto copy = capture::copy_segment(before.segments[0]);
  REQUIRE(copy);
  std::vector<std::byte> again(10000);
  REQUIRE(io::pread_exact(copy->get(), again, 0, ""));
  CHECK(bytes == again);
  fd->reset();
  REQUIRE(::shmdt(memory) == 0);
  CHECK(describe().segments.empty());

  restore::Reasons reasons;
  restore::IpcObjects objects;
  objects.make(before, reasons);
  REQUIRE(reasons.verdict(""));
  REQUIRE(objects.set_back());
  {
    auto attached = restore::AttachedSegment::attach(before.segments[0]);
    REQUIRE(attached);
    CHECK(attached->size() == 12288);
    std::copy(bytes.begin(), bytes.end(), attached->data());
  }
  auto area = restore::RestorerArea::create({});
  REQUIRE(area);
  auto child = restore::Child::create(free_pid(), *area);
  REQUIRE(child);
  restore::SyscallBatch batch;
  constexpr uint64_t kAddress = 0x500000000000;
  restore::attach_segment(before.segments[0], kAddress, true, batch);
  REQUIRE(child->run(batch));
  REQUIRE(objects.keep());
  CHECK(describe().segments == before.segments);  // this process made it
  auto theirs = capture::open_segment(child->pid(), kAddress, kAddress + 12288);
  REQUIRE(theirs);
  REQUIRE(io::pread_exact(theirs->get(), again, 0, ""));
  CHECK(bytes == again);
  auto found = capture::describe_ipc({child->pid()}, {ids.segment});
  REQUIRE(found);
  CHECK(found->segments == before.segments);
}

TEST_CASE("ipc: semaphores and queues remember who used them last, and SEM_UNDO is noticed") {
  if (!may_choose_ids()) return;
  Ids ids = make_some(some_key(2));
  auto area = restore::RestorerArea::create({});
  REQUIRE(area);
  auto child = restore::Child::create(free_pid(), *area);
  REQUIRE(child);
  auto image = describe();
  image.sets[0].semaphores[1].pid = child->pid();
  image.queues[0].receiver = child->pid();
  restore::Reasons reasons;
  restore::IpcObjects objects;
  objects.make(image, reasons);
  REQUIRE(objects.set_back());
  std::vector<int> pids = {child->pid()};
  restore::SyscallBatch batch, finish;
  restore::claim_ipc(image, child->pid(), pids, *area, batch);
  restore::finish_claims(image, child->pid(), *area, finish);
  CHECK(batch.size() == 2);
  REQUIRE(child->run(batch));
  REQUIRE(child->run(finish));
  REQUIRE(objects.keep());
  image.queues[0].sender = child->pid();  // the true one is not among the restored
  CHECK(describe().sets == image.sets);
  auto theirs = capture::describe_ipc(pids, {});
  REQUIRE(theirs);
  CHECK(theirs->queues == image.queues);
  auto plain = capture::may_have_undo(child->pid());
  REQUIRE(plain);
  CHECK_FALSE(*plain);
  restore::SyscallBatch undo;
  sembuf operation{1, -1, SEM_UNDO};
  undo.add("use a semaphore", 65 /* semop */, ids.set, area->put(operation), 1);
  REQUIRE(child->run(undo));
  auto used = capture::may_have_undo(child->pid());
  REQUIRE(used);
  CHECK(*used);
}
