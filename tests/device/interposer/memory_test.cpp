// The memory of a program under `ckpt run`: listed, asked about, exported, taken away and put back.
#include <doctest/doctest.h>

#include <thread>

#include "tests/device/interposer/puppet_process.h"

using namespace ckpt;

TEST_CASE("every allocation is listed, large device memory as owned") {
  Puppet puppet;
  const uint64_t large = puppet.number("alloc 5000000"), small = puppet.number("alloc 1000"),
                 host = puppet.number("host 8192");
  const uint64_t managed = puppet.number("managed 65536"), pool = puppet.number("pool 4194304");
  CHECK(puppet.number("pitch 1000 4000") == 1024);
  auto agent = puppet.agent();
  CHECK(allocation_at(*agent, large).kind == device::MemoryKind::kOwned);
  CHECK(allocation_at(*agent, large).size == 6 * kMiB);
  CHECK(allocation_at(*agent, small).kind == device::MemoryKind::kNative);
  CHECK(allocation_at(*agent, small).size == 1000);
  CHECK(allocation_at(*agent, host).kind == device::MemoryKind::kPinned);
  CHECK(allocation_at(*agent, managed).kind == device::MemoryKind::kNative);
  CHECK(allocation_at(*agent, pool).kind == device::MemoryKind::kNative);
  auto listing = agent->listing();
  REQUIRE(listing);
  for (const ckpt::agent::AllocationReply& entry : *listing) {
    if (entry.address == managed) CHECK(entry.kind == ckpt::agent::Kind::kManaged);
    if (entry.address == large) CHECK(entry.asked == 5000000);
  }
  CHECK(puppet.ask("free 0") == "ok");
  CHECK(puppet.ask("free-twice 0") == "ok");
  auto after = agent->allocations();
  REQUIRE(after);
  for (const device::Allocation& a : *after) CHECK(a.address.value != large);
  auto uuid = agent->device_uuid(0);
  REQUIRE(uuid);
  CHECK(uuid->size() == 40);
}

TEST_CASE("queries about owned memory answer as for the driver's") {
  Puppet puppet;
  puppet.number("alloc 5000000");
  CHECK(puppet.number("attributes 0") == 5000000);
}

TEST_CASE("owned memory is exported and read from another process") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 7") == "ok");
  auto agent = puppet.agent();
  auto fd = agent->export_allocation(allocation_at(*agent, at).id);
  REQUIRE(fd);
  CHECK(View(*fd).holds(7, 4 * kMiB));
  auto none = agent->export_allocation(999999);
  REQUIRE(!none);
  CHECK(none.error().code == Code::kNotFound);
  auto foreign = agent->export_allocation(allocation_at(*agent, puppet.number("alloc 100")).id);
  REQUIRE(!foreign);
  CHECK(foreign.error().code == Code::kUnsupported);
}

TEST_CASE("memory is taken away and comes back at its address, from where it was offloaded") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 8388608");
  CHECK(puppet.ask("write 0 11") == "ok");
  auto agent = puppet.agent();
  const uint64_t id = allocation_at(*agent, at).id;
  auto open_gate_only = agent->release(id);
  CHECK(!open_gate_only);
  stop_and_take(*agent);
  auto offloaded = agent->export_allocation(id);
  REQUIRE(offloaded);
  DONE(agent->release(id));
  CHECK(allocation_at(*agent, at).released);
  auto too_early = agent->unlock_api();
  REQUIRE(!too_early);
  CHECK(too_early.error().code == Code::kBusy);
  CHECK(agent->export_allocation(id).error().code == Code::kBusy);
  DONE(agent->forget());
  DONE(agent->attach(id, offloaded->get()));
  CHECK(!allocation_at(*agent, at).released);
  DONE(agent->unlock_api());
  CHECK(puppet.ask("check 0 11") == "ok");

  // Fresh memory, filled from here.
  stop_and_take(*agent);
  DONE(agent->release(id));
  DONE(agent->forget());
  DONE(agent->attach(id, -1));
  auto fresh = agent->export_allocation(id);
  REQUIRE(fresh);
  {
    const View view(*fresh);
    for (size_t i = 0; i < kMiB; ++i) view.data[i] = word_of(12, i);
  }
  DONE(agent->unlock_api());
  CHECK(puppet.ask("check 0 12") == "ok");
}

TEST_CASE("memory that the program maps itself is owned piece by piece, its handles stay good") {
  Puppet puppet;
  const uint64_t at = puppet.number("segment 4 4194304");
  CHECK(puppet.ask("write 0 81") == "ok");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  std::vector<std::pair<uint64_t, UniqueFd>> offloaded;
  for (uint64_t piece = 0; piece < 4; ++piece) {
    const device::Allocation a = allocation_at(*agent, at + piece * 4 * kMiB);
    CHECK(a.kind == device::MemoryKind::kOwned);
    CHECK(a.size == 4 * kMiB);
    auto fd = agent->export_allocation(a.id);
    REQUIRE(fd);
    offloaded.emplace_back(a.id, std::move(*fd));
    DONE(agent->release(a.id));
  }
  DONE(agent->forget());
  for (const auto& [id, fd] : offloaded) DONE(agent->attach(id, fd.get()));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("check 0 81") == "ok");
  CHECK(puppet.ask("write 0 82") == "ok");
  CHECK(puppet.ask("check 0 82") == "ok");
  // A pointer to one piece stands for its neighbours: a kernel takes them for one.
  stop_and_take(*agent);
  DONE(agent->begin_cow(64 * kMiB, all_owned(*agent)));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("write 0 83") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  CHECK(table->saved.size() == 4);
  DONE(agent->end_cow());
  CHECK(puppet.ask("share 2") == "ok");
  CHECK(allocation_at(*agent, at + 8 * kMiB).kind == device::MemoryKind::kNative);
  CHECK(allocation_at(*agent, at + 4 * kMiB).kind == device::MemoryKind::kOwned);
  CHECK(puppet.ask("end-segment 0") == "ok");
  auto after = agent->allocations();
  REQUIRE(after);
  for (const device::Allocation& a : *after) CHECK((a.address.value < at || a.address.value >= at + 16 * kMiB));
}

TEST_CASE("memory is made anew at its address; without room for that it stays as it is") {
  Puppet puppet({"CKPT_STANDIN_CAPACITY=20971520", "CKPT_STANDIN_UNKIND=reexport"});
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 5") == "ok");
  auto agent = puppet.agent();
  const uint64_t id = allocation_at(*agent, at).id;
  auto memory = [&] {
    auto fd = agent->export_allocation(id);
    REQUIRE(fd);
    CHECK(View(*fd).holds(5, 4 * kMiB));
    struct stat about;
    REQUIRE(::fstat(fd->get(), &about) == 0);
    return about.st_ino;
  };
  const ino_t first = memory();
  CHECK(!agent->renew(id, device::Renew::kAny));  // the API is open
  stop_and_take(*agent);
  DONE(agent->renew(id, device::Renew::kAttached));
  CHECK(memory() == first);
  DONE(agent->renew(id, device::Renew::kAny));
  const ino_t second = memory();
  CHECK(second != first);
  DONE(agent->unlock_api());
  CHECK(puppet.ask("check 0 5") == "ok");

  puppet.number("alloc 8388608");
  stop_and_take(*agent);
  CHECK(agent->renew(id, device::Renew::kAny).error().code == Code::kNoRoom);
  CHECK(memory() == second);
  // What came by a descriptor is not given away a second time.
  auto given = agent->export_allocation(id);
  REQUIRE(given);
  DONE(agent->release(id));
  DONE(agent->forget());
  DONE(agent->attach(id, given->get()));
  CHECK(!agent->export_allocation(id));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("check 0 5") == "ok");
}

TEST_CASE("forks, and contexts that end with all their memory") {
  Puppet puppet;
  puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 5") == "ok");
  CHECK(puppet.ask("fork") == "ok");
  CHECK(puppet.ask("check 0 5") == "ok");
  CHECK(puppet.ask("reset") == "ok");
  auto agent = puppet.agent();
  auto all = agent->allocations();
  REQUIRE(all);
  for (const device::Allocation& a : *all) CHECK(a.kind != device::MemoryKind::kOwned);
}

TEST_CASE("a device without room: the program sees what the driver says") {
  Puppet puppet({"CKPT_STANDIN_CAPACITY=67108864"});
  CHECK(puppet.ask("alloc 1073741824").find(" 2") != std::string::npos);
  puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 5") == "ok");
  CHECK(puppet.ask("check 0 5") == "ok");
}

TEST_CASE("memory of another process is named while it is open; owned memory is given to none") {
  Puppet giver, taker;
  giver.number("alloc 1000000");
  giver.number("alloc 4194304");
  const std::string given = giver.ask("give-ipc 0");
  REQUIRE(given.starts_with("ok "));
  CHECK(giver.ask("give-ipc 1").starts_with("no"));
  REQUIRE(taker.ask("take-ipc " + given.substr(3)) == "ok");
  auto agent = taker.agent();
  auto hazards = agent->hazards();
  REQUIRE(hazards);
  REQUIRE(hazards->size() == 1);
  CHECK((*hazards)[0].starts_with("memory of another process by CUDA IPC"));
  CHECK(taker.ask("close-ipc 0") == "ok");
  CHECK(agent->hazards().value().empty());
}

TEST_CASE("memory that came by a shareable handle is named while it is mapped") {
  Puppet puppet;
  REQUIRE(puppet.ask("import 4194304") == "ok");
  auto agent = puppet.agent();
  auto hazards = agent->hazards();
  REQUIRE(hazards);
  REQUIRE(hazards->size() == 1);
  CHECK((*hazards)[0].starts_with("memory of another process by a shareable handle"));
  CHECK(puppet.ask("unmap 0") == "ok");
  CHECK(agent->hazards().value().empty());
}

TEST_CASE("questions about memory that is away wait until it is back") {
  Puppet puppet;
  const uint64_t plain = puppet.number("alloc 5000000"), segment = puppet.number("segment 1 4194304");
  std::string question;
  uint64_t address = 0;
  SUBCASE("about an address") { question = "attributes 0", address = plain; }
  SUBCASE("about a handle") { question = "share 0", address = segment; }
  auto agent = puppet.agent();
  const uint64_t id = allocation_at(*agent, address).id;
  stop_and_take(*agent);
  DONE(agent->release(id));
  puppet.say(question);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  DONE(agent->attach(id, -1));
  DONE(agent->unlock_api());
  CHECK(puppet.answer().starts_with("ok"));
}

TEST_CASE("a call that the driver refuses ends nothing") {
  Puppet puppet;
  const uint64_t host = puppet.number("host 8192"), large = puppet.number("alloc 4194304");
  CHECK(puppet.ask("free-at " + std::to_string(host)).starts_with("no"));
  CHECK(puppet.ask("free-at " + std::to_string(large + 4096)).starts_with("no"));
  auto agent = puppet.agent();
  CHECK(allocation_at(*agent, host).kind == device::MemoryKind::kPinned);
  CHECK(allocation_at(*agent, large).kind == device::MemoryKind::kOwned);
}
