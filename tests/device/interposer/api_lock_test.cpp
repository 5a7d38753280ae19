// The API lock of a program under `ckpt run`, taken and given back from outside while the program works.
#include <doctest/doctest.h>

#include <thread>

#include "tests/device/interposer/puppet_process.h"

using namespace ckpt;

TEST_CASE("nothing passes a locked API, and all of it does afterwards") {
  Puppet puppet;
  bool membarrier = true;
  SUBCASE("with membarrier") {}
  SUBCASE("without") { membarrier = false; }
  if (!membarrier && puppet.ask("forbid-membarrier") != "ok") return;
  CHECK(puppet.ask("hammer 4") == "ok");
  auto agent = puppet.agent();
  auto all = agent->allocations();
  REQUIRE(all);
  uint64_t counters = 0;
  for (const device::Allocation& a : *all) {
    if (a.kind == device::MemoryKind::kOwned) counters = a.id;
  }
  auto fd = agent->export_allocation(counters);
  REQUIRE(fd);
  const View view(*fd);
  auto sum = [&] {
    uint64_t total = 0;
    for (int i = 0; i < 4; ++i) total += view.data[8 * i];
    return total;
  };
  uint64_t before = 0;
  for (int round = 0; round < 10; ++round) {
    stop_and_take(*agent);
    const uint64_t stopped = sum();
    CHECK(stopped >= before);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(sum() == stopped);
    before = stopped;
    DONE(agent->unlock_api());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(puppet.number("halt") > before);
}

TEST_CASE("a kernel without end: draining gives up in time, the API is unlocked") {
  Puppet puppet;
  CHECK(puppet.ask("spin") == "ok");
  auto agent = puppet.agent();
  DONE(agent->lock_api(5 * kSecond));
  auto drained = agent->drain(kSecond / 10);
  REQUIRE(!drained);
  CHECK(drained.error().code == Code::kBusy);
  DONE(agent->unlock_api());
  CHECK(puppet.ask("unspin") == "ok");
  stop_and_take(*agent);
  DONE(agent->unlock_api());
}

TEST_CASE("a thread that waits inside: closing gives up in time, the API is unlocked") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(at != 0);
  CHECK(puppet.ask("spin") == "ok");
  puppet.say("free 0");  // waits for the kernel, in the API lock
  auto agent = puppet.agent();
  Result<void> closed;
  for (int i = 0; i < 100; ++i) {
    closed = agent->lock_api(kSecond / 10);
    if (!closed) break;
    DONE(agent->unlock_api());
  }
  REQUIRE(!closed);
  CHECK(closed.error().code == Code::kBusy);
  CHECK(agent->hello().value().api_locked == 0);
}

TEST_CASE("a capture goes on undisturbed: the API is locked when it has ended") {
  Puppet puppet;
  puppet.number("alloc 4194304");
  CHECK(puppet.ask("graph 0") == "ok");
  CHECK(puppet.ask("begin-capture") == "ok");
  auto agent = puppet.agent();
  auto closed = agent->lock_api(kSecond / 10);
  REQUIRE(!closed);
  CHECK(closed.error().code == Code::kBusy);
  CHECK(agent->hello().value().captures == 1);
  CHECK(puppet.ask("end-capture") == "ok");
  stop_and_take(*agent);
  DONE(agent->unlock_api());
  CHECK(puppet.ask("graph 0") == "ok");
}

TEST_CASE("threads that come and go while the API is locked and unlocked") {
  Puppet puppet;
  auto agent = puppet.agent();
  puppet.say("churn 300");
  for (int i = 0; i < 50; ++i) {
    stop_and_take(*agent);
    DONE(agent->unlock_api());
  }
  CHECK(puppet.answer() == "ok");
}

TEST_CASE("memory that was freed in a capture is not waited for when the API is locked") {
  Puppet puppet;
  CHECK(puppet.ask("begin-capture") == "ok");
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("free 0") == "ok");
  CHECK(puppet.ask("drop-capture") == "ok");
  CHECK(puppet.ask("spin") == "ok");
  auto agent = puppet.agent();
  DONE(agent->lock_api(5 * kSecond));
  CHECK(agent->drain(kSecond / 10).error().code == Code::kBusy);
  for (const device::Allocation& a : agent->allocations().value()) CHECK(a.address.value != at);
  DONE(agent->unlock_api());
  CHECK(puppet.ask("unspin") == "ok");
  stop_and_take(*agent);
  DONE(agent->unlock_api());
}

TEST_CASE("memory is freed in the order of a stream, also while another one is captured") {
  Puppet puppet;
  puppet.number("alloc 4194304");
  puppet.number("alloc 4194304");
  CHECK(puppet.ask("free-async 0") == "ok");
  CHECK(puppet.ask("begin-capture") == "ok");
  CHECK(puppet.ask("free-async 1") == "ok");
  CHECK(puppet.ask("end-capture") == "ok");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  int owned = 0;
  for (const device::Allocation& a : agent->allocations().value()) owned += a.kind == device::MemoryKind::kOwned;
  CHECK(owned == 1);  // its own counters
}
