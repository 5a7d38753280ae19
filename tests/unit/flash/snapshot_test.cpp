#include "lib/flash/client/snapshot.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

using namespace ckpt::flash;

namespace {

constexpr size_t kBytes = 24 << 20;

/// Sanitizers make mappings of their own, and see writes to memory that userfaultfd protects as races.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

struct Memory {
  unsigned char* data;
  size_t size;
  explicit Memory(size_t bytes, int kind = MAP_PRIVATE) : size(bytes) {
    data = static_cast<unsigned char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0));
    REQUIRE(data != MAP_FAILED);
  }
  ~Memory() { ::munmap(data, size); }
};

/// Memory that whoever writes to it waits for, until it is opened.
struct Gate {
  Memory memory;
  int fault;
  explicit Gate(size_t bytes) : memory(bytes), fault(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))) {
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register all{};
    all.range = {reinterpret_cast<uint64_t>(memory.data), bytes};
    all.mode = UFFDIO_REGISTER_MODE_MISSING;
    closed = fault >= 0 && ::ioctl(fault, UFFDIO_API, &api) == 0 && ::ioctl(fault, UFFDIO_REGISTER, &all) == 0;
  }
  ~Gate() { open(); }
  void open() {
    if (fault >= 0) ::close(std::exchange(fault, -1));
  }
  bool closed;
};

void fill(Memory& memory) {
  for (size_t i = 0; i < memory.size; ++i) memory.data[i] = static_cast<unsigned char>(i % 251);
}

bool is_there(const std::unique_ptr<Snapshot>& snapshot) {
  if (!snapshot) MESSAGE("skipped: snapshot: this kernel or user has no userfaultfd for it");
  return snapshot != nullptr;
}

/// A snapshot of memory that is held until its gate is opened.
struct SnapshotTaken {
  Gate to{kBytes};
  Memory from{kBytes};
  std::unique_ptr<Snapshot> snapshot;
  SnapshotTaken() {
    fill(from);
    if (to.closed) snapshot = Snapshot::begin({{to.memory.data, from.data, kBytes}}, 1, [] {});
  }
};

size_t mappings() {
  size_t out = 0;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  for (int c = std::getc(maps); c != EOF; c = std::getc(maps)) out += c == '\n';
  std::fclose(maps);
  return out;
}

size_t differing(const unsigned char* data, size_t size) {
  size_t out = 0;
  for (size_t i = 0; i < size; ++i) out += data[i] != i % 251;
  return out;
}

}  // namespace

TEST_CASE("snapshot: what is written behind its back is not in it, pages that nobody had touched included") {
  Memory from(kBytes), to(kBytes + 100);
  for (size_t i = 0; i < kBytes / 2; ++i)
    from.data[i] = static_cast<unsigned char>(i % 251);  // the rest stays untouched
  const size_t begin = 77, bytes = kBytes - 200;         // neither end at a page
  bool done = false;
  auto snapshot = Snapshot::begin({{to.data + 3, from.data + begin, bytes}}, 2, [&] { done = true; });
  if (!is_there(snapshot)) return;
  CHECK(snapshot->protected_bytes() > bytes - 2 * 4096);
  std::memset(from.data, 255, kBytes);
  snapshot->wait();
  CHECK(done);
  CHECK(snapshot->finished());
  size_t wrong = 0;
  for (size_t i = 0; i < bytes; ++i) {
    const size_t at = begin + i;
    wrong += to.data[3 + i] != (at < kBytes / 2 ? at % 251 : 0);
  }
  CHECK(wrong == 0);
  CHECK(from.data[kBytes - 1] == 255);
  snapshot.reset();
  from.data[5] = 1;  // nothing is protected any more
}

TEST_CASE("snapshot: small parts are copied at once, and two parts over the same memory are both right") {
  Memory from(2 << 20), to(8 << 20);
  std::iota(from.data, from.data + from.size, static_cast<unsigned char>(0));
  auto snapshot = Snapshot::begin({{to.data, from.data, from.size},
                                   {to.data + (4 << 20), from.data + 8, from.size - 8},
                                   {to.data + (7 << 20), from.data + 5, 1000}},
                                  1, [] {});
  if (!is_there(snapshot)) return;
  std::memset(from.data, 9, from.size);
  snapshot->wait();
  CHECK(to.data[1'000'000] == static_cast<unsigned char>(1'000'000));
  CHECK(to.data[(4 << 20) + 1'000'000] == static_cast<unsigned char>(1'000'008));
  CHECK(to.data[(7 << 20) + 999] == static_cast<unsigned char>(1004));
}

TEST_CASE("snapshot: memory is where it was, with what was written meanwhile, in as many mappings as before") {
  Memory from(kBytes), to(kBytes);
  fill(from);
  const size_t before = mappings();
  for (int round = 0; round < 3; ++round) {
    auto snapshot = Snapshot::begin({{to.data, from.data, kBytes}}, 2, [] {});
    if (!is_there(snapshot)) return;
    for (size_t at = kBytes; at >= 4096; at -= 4096) from.data[at - 1] ^= 1;  // from the other end, as copies come
    snapshot->wait();
    snapshot.reset();
    for (size_t at = kBytes; at >= 4096; at -= 4096) from.data[at - 1] ^= 1;
    CHECK(differing(to.data, kBytes) == 0);
    CHECK(differing(from.data, kBytes) == 0);
  }
  if (!kSanitized) CHECK(mappings() <= before + 2);  // stacks of threads that have ended may stay
}

TEST_CASE("snapshot: threads that write all the time lose nothing, and what is copied is of one instant") {
  constexpr size_t kStep = 3 * 4096;
  Memory from(kBytes), to(kBytes);  // untouched at first
  std::atomic<bool> stop{false};
  size_t rounds = 0;
  std::thread writer([&] {
    for (; !stop.load(); ++rounds) {
      for (size_t at = 0; at < kBytes; at += kStep) ++from.data[at];
    }
  });
  size_t wrong = 0;
  for (int i = 0; i < 20; ++i) {
    auto snapshot = Snapshot::begin({{to.data, from.data, kBytes}}, 2, [] {});
    if (!is_there(snapshot)) break;
    snapshot->wait();
    // The writer goes from front to end: one place at most is one ahead of its next.
    size_t falls = 0;
    for (size_t at = kStep; at < kBytes; at += kStep) falls += to.data[at] != to.data[at - kStep];
    wrong += falls > 1;
  }
  stop.store(true);
  writer.join();
  for (size_t at = 0; at < kBytes; at += kStep) wrong += from.data[at] != static_cast<unsigned char>(rounds);
  if (!kSanitized) CHECK(wrong == 0);
}

/// Whether there is a page, without touching it.
bool resident(unsigned char* at) {
  unsigned char out = 0;
  REQUIRE(::mincore(at, 1, &out) == 0);
  return (out & 1) != 0;
}

TEST_CASE("snapshot: private memory is away until it is copied, other memory and pieces of two mappings stay") {
  if (kSanitized) return;
  Gate to(3 * kBytes);
  Memory one(kBytes), shared(kBytes, MAP_SHARED), two(kBytes);
  if (!to.closed) return;
  for (Memory* memory : {&one, &shared, &two}) fill(*memory);
  REQUIRE(::madvise(two.data, kBytes / 2, MADV_DONTDUMP) == 0);
  auto snapshot = Snapshot::begin({{to.memory.data, one.data, kBytes},
                                   {to.memory.data + kBytes, shared.data, kBytes},
                                   {to.memory.data + 2 * kBytes, two.data, kBytes}},
                                  2, [] {});
  if (!is_there(snapshot)) return;
  CHECK_FALSE(resident(one.data + kBytes / 2));
  CHECK(resident(shared.data + kBytes / 2));
  CHECK(resident(two.data + kBytes / 2));
  to.open();
  for (Memory* memory : {&two, &shared, &one}) {
    memory->data[kBytes / 2] ^= 1;
    memory->data[kBytes / 2] ^= 1;
  }
  snapshot->wait();
  for (int i = 0; i < 3; ++i) CHECK(differing(to.memory.data + i * kBytes, kBytes) == 0);
  for (Memory* memory : {&one, &shared, &two}) CHECK(differing(memory->data, kBytes) == 0);
}

TEST_CASE("snapshot: memory that is shared with other processes stays in its place") {
  if (kSanitized) return;
  Memory from(kBytes, MAP_SHARED), to(kBytes);
  fill(from);
  auto snapshot = Snapshot::begin({{to.data, from.data, kBytes}}, 2, [] {});
  if (!is_there(snapshot)) return;
  std::memset(from.data, 7, kBytes);
  snapshot->wait();
  CHECK(differing(to.data, kBytes) == 0);
  CHECK(from.data[kBytes / 2] == 7);
}

TEST_CASE("snapshot: a fork waits until the memory is back, and its child has all of it") {
  SnapshotTaken taken;
  auto& [to, from, snapshot] = taken;
  if (!is_there(snapshot)) return;
  std::atomic<bool> forked{false};
  int status = -1;
  std::thread other([&] {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(differing(from.data, kBytes) == 0 ? 0 : 1);
    forked.store(true);
    ::waitpid(child, &status, 0);
  });
  ::usleep(50'000);
  CHECK_FALSE(forked.load());
  to.open();
  other.join();
  CHECK(status == 0);
  snapshot->wait();
  CHECK(differing(to.memory.data, kBytes) == 0);
}

TEST_CASE("snapshot: of many pieces some are copied at once, so that half of all mappings stay the program's") {
  if (kSanitized) return;
  constexpr size_t kPiece = 260 << 10, kPieces = 12'000;  // 36,000 mappings, where 65,530 may be made
  long most = 0;
  std::FILE* limit = std::fopen("/proc/sys/vm/max_map_count", "re");
  if (limit == nullptr || std::fscanf(limit, "%ld", &most) != 1 || most > 70'000) {
    MESSAGE("skipped: snapshot: vm.max_map_count is too high here to come near it");
    return;
  }
  std::fclose(limit);
  Memory from(kPiece * kPieces);
  Gate to(kPiece * kPieces);
  if (!to.closed) return;
  std::vector<CopyPart> parts;
  for (size_t i = 0; i < kPieces; ++i) {
    from.data[i * kPiece] = static_cast<unsigned char>(i % 251);
    parts.push_back({to.memory.data + i * kPiece, from.data + i * kPiece, kPiece - 8192});
  }
  // What is copied at once waits for the gate, too.
  std::unique_ptr<Snapshot> snapshot;
  std::thread taker([&] { snapshot = Snapshot::begin(parts, 2, [] {}); });
  ::usleep(300'000);
  CHECK(mappings() < static_cast<size_t>(most) * 6 / 10);
  std::atomic<size_t> wrong{0};
  std::thread toucher([&] {  // from the end
    for (size_t i = kPieces; i-- > 0;) wrong += ++from.data[i * kPiece] != static_cast<unsigned char>(i % 251 + 1);
  });
  ::usleep(10'000);
  to.open();
  taker.join();
  toucher.join();
  if (!is_there(snapshot)) return;
  CHECK(snapshot->protected_bytes() < kPieces * (kPiece - 8192));
  snapshot->wait();
  for (size_t i = 0; i < kPieces; ++i) wrong += from.data[i * kPiece] != static_cast<unsigned char>(i % 251 + 1);
  CHECK(wrong.load() == 0);
}

TEST_CASE("snapshot: where no more mappings may be made pages come back as copies") {
  if (kSanitized) return;
  SnapshotTaken taken;
  auto& [to, from, snapshot] = taken;
  if (!is_there(snapshot)) return;
  // Each page of another protection than the one beside it is a mapping of its own.
  std::vector<void*> many;
  for (;;) {
    void* one = ::mmap(nullptr, 4096, many.size() % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (one == MAP_FAILED) break;
    many.push_back(one);
    if (many.size() > 200'000) break;
  }
  if (many.size() > 200'000) MESSAGE("skipped: snapshot: vm.max_map_count is too high here to use all of them up");
  to.open();
  CHECK(from.data[kBytes / 2] == kBytes / 2 % 251);  // waits
  snapshot->wait();
  for (void* one : many) ::munmap(one, 4096);
  CHECK(differing(to.memory.data, kBytes) == 0);
  CHECK(differing(from.data, kBytes) == 0);
}
