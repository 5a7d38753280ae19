#include <doctest/doctest.h>

#include <csetjmp>
#include <csignal>
#include <cstring>

#include "tests/support/emulated/target.h"

using namespace ckpt;
using namespace ckpt::device;

namespace {

constexpr uint64_t kSecond = 1'000'000;

struct Machine {
  std::shared_ptr<Faults> faults = std::make_shared<Faults>();
  std::shared_ptr<EmulatedGpu> gpu;
  std::unique_ptr<Device> device;
  explicit Machine(uint64_t capacity = 64 << 20, uint32_t delay_us = 50) {
    EmulatedGpu::Options options;
    options.capacity = capacity, options.max_delay_us = delay_us, options.faults = faults;
    gpu = EmulatedGpu::create(options);
    device = make_emulated_device(gpu);
  }
  EmulatedTarget target() {
    return EmulatedTarget(1, {gpu}, {{"fill", [](KernelMemory& m, const std::vector<uint64_t>& a) {
                                        std::fill_n(m.words({a[0]}, a[1]), a[1], a[2]);
                                      }}});
  }
};

KernelCall fill(const Allocation& a, uint64_t value) {
  return {"fill", {a.address.value, a.size / 8, value}, {}, {a.range()}, true};
}

sigjmp_buf fault_jump;
void on_fault(int) { siglongjmp(fault_jump, 1); }

}  // namespace

TEST_CASE("emulated device: copies, gathers and hashes in order of the stream") {
  Machine machine;
  auto buffer = machine.device->allocate(4 * kMinChunk);
  auto other = machine.device->allocate(4 * kMinChunk);
  auto host = machine.device->allocate_pinned(4 * kMinChunk + 4096);
  auto stream = machine.device->create_stream();
  REQUIRE((buffer && other && host && stream));
  MutableByteSpan bytes = (*host)->bytes();
  for (size_t i = 0; i < 4 * kMinChunk; ++i) bytes[i] = static_cast<std::byte>(i / kMinChunk + i % 251);
  const std::vector<std::byte> before(bytes.begin(), bytes.end());
  auto* hashes = reinterpret_cast<ChunkHash*>(bytes.data() + 4 * kMinChunk);
  const Address at = (*buffer)->range().start;
  REQUIRE((*stream)->copy_to_device((*buffer)->range(), bytes.first(4 * kMinChunk)));
  REQUIRE((*stream)->hash((*buffer)->range(), kMinChunk, {hashes, 4}));
  const std::vector<Address> from = {at + 3 * kMinChunk, at + kMinChunk};
  REQUIRE((*stream)->copy_and_hash(from, kMinChunk, (*other)->range().start, {hashes + 4, 2}));
  REQUIRE((*stream)->copy_to_host(bytes.first(2 * kMinChunk), {(*other)->range().start, 2 * kMinChunk}));
  auto event = (*stream)->record();
  REQUIRE(event);
  REQUIRE((*event)->wait(kSecond * 10));
  CHECK(std::memcmp(bytes.data(), before.data() + 3 * kMinChunk, kMinChunk) == 0);
  CHECK(std::memcmp(bytes.data() + kMinChunk, before.data() + kMinChunk, kMinChunk) == 0);
  for (size_t i = 0; i < 4; ++i) CHECK(hashes[i] == hash_chunk(before.data() + i * kMinChunk, kMinChunk));
  CHECK(hashes[4] == hashes[3]);
  CHECK(hashes[5] == hashes[1]);
  CHECK(machine.gpu->violations().empty());
}

TEST_CASE("emulated device: host code that touches a device address faults") {
  Machine machine;
  auto buffer = machine.device->allocate(kMinChunk);
  REQUIRE(buffer);
  struct sigaction action {}, old {};
  action.sa_handler = on_fault;
  REQUIRE(sigaction(SIGSEGV, &action, &old) == 0);
  bool faulted = sigsetjmp(fault_jump, 1) != 0;
  if (!faulted) *reinterpret_cast<volatile char*>((*buffer)->range().start.value) = 1;
  sigaction(SIGSEGV, &old, nullptr);
  CHECK(faulted);
}

TEST_CASE("emulated device: capacity is finite, imports share memory, all of it comes back") {
  Machine machine(4 * kMinChunk);
  {
    auto a = machine.device->allocate(3 * kMinChunk);
    REQUIRE(a);
    auto b = machine.device->allocate(2 * kMinChunk);
    REQUIRE_FALSE(b);
    CHECK(b.error().code == Code::kNoRoom);
    auto fd = (*a)->export_fd();
    REQUIRE(fd);
    auto same = machine.device->import(fd->get(), 3 * kMinChunk);
    REQUIRE(same);
    CHECK(machine.gpu->used_bytes() == 3 * kMinChunk);
    CHECK_FALSE(machine.device->import(fd->get(), kMinChunk));
  }
  CHECK(machine.gpu->used_bytes() == 0);
  CHECK(machine.gpu->pinned_bytes() == 0);
}

TEST_CASE("emulated device: memory freed with work on it is noticed") {
  Machine machine(64 << 20, 0);
  auto target = machine.target();
  auto stream = machine.device->create_stream();
  auto gate = machine.device->create_stream();
  auto buffer = machine.device->allocate(kMaxChunk * 8);
  auto host = machine.device->allocate_pinned(4096);
  auto* hashes = reinterpret_cast<ChunkHash*>((*host)->bytes().data());
  for (int i = 0; i < 20; ++i) REQUIRE((*stream)->hash((*buffer)->range(), kMaxChunk, {hashes, 8}));
  buffer->reset();
  REQUIRE((*stream)->synchronize(60 * kSecond));
  CHECK_FALSE(machine.gpu->violations().empty());
}

TEST_CASE("emulated target: nothing passes a locked API, and what was submitted drains") {
  Machine machine;
  auto target = machine.target();
  auto a = target.allocate(4 * kMinChunk), b = target.allocate(4 * kMinChunk);  // one for each queue
  REQUIRE(a);
  REQUIRE(b);
  std::atomic<uint64_t> launched{0};
  std::atomic<bool> stop{false};
  std::thread program([&] {
    for (uint64_t i = 1; !stop; ++i) {
      if (!target.launch(static_cast<int>(i % 2), fill(i % 2 == 0 ? *a : *b, i))) return;
      if (i % 16 == 0) (void)target.synchronize();
      launched = i;
    }
  });
  for (int round = 0; round < 10; ++round) {
    REQUIRE(target.lock_api(kSecond));
    REQUIRE(target.drain(60 * kSecond));
    const auto first = target.peek(a->range()), second = target.peek(b->range());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK((target.peek(a->range()) == first && target.peek(b->range()) == second));
    REQUIRE(target.unlock_api());
    std::this_thread::yield();
  }
  stop = true;
  program.join();
  CHECK(machine.gpu->violations().empty());
}

TEST_CASE("emulated target: releasing keeps the address, attaching brings the same memory back") {
  Machine machine;
  auto target = machine.target();
  auto a = target.allocate(4 * kMinChunk);
  REQUIRE(target.launch(0, fill(*a, 42)));
  REQUIRE_FALSE(target.release(a->id));  // the API is unlocked
  REQUIRE(target.lock_api(kSecond));
  REQUIRE(target.drain(60 * kSecond));
  const auto before = target.peek(a->range());
  auto fd = target.export_allocation(a->id);
  REQUIRE(fd);
  auto kept = machine.device->import(fd->get(), a->size);
  REQUIRE(kept);
  REQUIRE(target.release(a->id));
  CHECK(target.peek(a->range()).empty());
  REQUIRE(target.attach(a->id, fd->get()));
  CHECK(target.peek(a->range()) == before);
  REQUIRE(target.unlock_api());
  CHECK(machine.gpu->violations().empty());
}

TEST_CASE("emulated target: what launches may write is set aside once, within the budget") {
  Machine machine;
  auto target = machine.target();
  auto a = target.allocate(4 * kMinChunk), b = target.allocate(4 * kMinChunk), c = target.allocate(4 * kMinChunk);
  for (const auto* one : {&a, &b, &c}) REQUIRE(target.launch(0, fill(**one, 1)));
  REQUIRE(target.lock_api(kSecond));
  REQUIRE(target.drain(60 * kSecond));
  REQUIRE(target.begin_cow(4 * kMinChunk, {a->range(), b->range()}));
  REQUIRE(target.unlock_api());
  REQUIRE(target.launch(0, fill(*c, 2)));  // nobody wants what it was
  const uint64_t half = a->size / 2;  // each queue writes its own
  for (uint64_t i = 2; i < 10; ++i)
    REQUIRE(target.launch(static_cast<int>(i % 2),
                          {"fill", {a->address.value + i % 2 * half, half / 8, i}, {}, {a->range()}, true}));
  REQUIRE(target.launch(0, fill(*b, 2)));
  auto table = target.saved(60 * kSecond);
  REQUIRE(table);
  REQUIRE(table->saved.size() == 1);
  CHECK(table->saved[0].original == a->range());
  REQUIRE(table->missed.size() == 1);
  CHECK(table->missed[0] == b->range());
  CHECK(target.cow_bytes() == 4 * kMinChunk);
  REQUIRE(target.synchronize());
  REQUIRE(target.end_cow());
  CHECK(machine.gpu->used_bytes() == 12 * kMinChunk);
}

TEST_CASE("emulated target: a launch waits for what is not filled, and says so") {
  Machine machine;
  auto target = machine.target();
  auto a = target.allocate(kMinChunk), b = target.allocate(kMinChunk);
  REQUIRE(target.lock_api(kSecond));
  REQUIRE(target.begin_fill({a->id, b->id}));
  REQUIRE(target.unlock_api());
  std::thread program([&] { (void)target.launch(0, fill(*b, 7)); });
  auto demand = target.next_demand(60 * kSecond);
  REQUIRE(demand);
  REQUIRE(demand->has_value());
  CHECK(**demand == std::vector<uint64_t>{b->id});
  CHECK(target.peek({b->address, 8}) == std::vector<std::byte>(8));
  REQUIRE(target.filled(b->id));
  program.join();
  auto none = target.next_demand(100);
  REQUIRE(none);
  CHECK_FALSE(none->has_value());
}

TEST_CASE("emulated target: any call can fail, and a dead target says so") {
  Machine machine;
  auto target = machine.target();
  machine.faults->arm(1, Fault::kTimeout);
  REQUIRE(target.lock_api(kSecond));
  auto late = target.drain(kSecond);
  REQUIRE_FALSE(late);
  CHECK(late.error().code == Code::kBusy);
  REQUIRE(target.unlock_api());
  machine.faults->arm(0, Fault::kTargetDies);
  auto gone = target.lock_api(kSecond);
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == Code::kNotFound);
  CHECK_FALSE(target.launch(0, {"fill", {}, {}, {}, true}));
  machine.faults->arm(0, Fault::kDeviceLost);
  CHECK_FALSE(machine.device->allocate(kMinChunk));
  CHECK(machine.device->memory_info().error().code == Code::kIo);
}
