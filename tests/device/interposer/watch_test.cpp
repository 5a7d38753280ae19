// What is done with calls of a program under `ckpt run` before they pass: copy-on-write, filling, recording.
#include <doctest/doctest.h>

#include "tests/device/interposer/puppet_process.h"

using namespace ckpt;

TEST_CASE("copy-on-write: bytes are set aside before a launch, a fill or a free can change them") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304"), b = puppet.number("alloc 4194304"),
                 c = puppet.number("alloc 4194304");
  for (int i = 0; i < 3; ++i) CHECK(puppet.ask("write " + std::to_string(i) + " 5" + std::to_string(i)) == "ok");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_cow(256 * kMiB, all_owned(*agent)));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("write 0 99") == "ok");
  CHECK(puppet.ask("fill 1 131072 100") == "ok");
  CHECK(puppet.ask("free 2") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  CHECK(table->missed.empty());
  auto holds = [&](uint64_t address, uint64_t size, uint64_t seed, uint64_t first) {
    for (const device::SavedRange& saved : table->saved) {
      if (saved.original.start.value != address || saved.original.size != size) continue;
      auto fd = agent->export_saved(saved.buffer);
      REQUIRE(fd);
      const View view(*fd);
      for (size_t i = 0; i < size / 8; ++i) {
        if (view.data[saved.offset / 8 + i] != word_of(seed, first / 8 + i)) return false;
      }
      return true;
    }
    return false;
  };
  CHECK(holds(a, 4 * kMiB, 50, 0));
  CHECK(holds(b + 131072, 65536, 51, 131072));
  CHECK(holds(c, 4 * kMiB, 52, 0));
  DONE(agent->end_cow());
  CHECK(puppet.ask("check 0 99") == "ok");
}

TEST_CASE("copy-on-write: what a library's kernel may write is known as well as what a function may") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304");
  puppet.number("alloc 4194304");
  for (int i = 0; i < 2; ++i) CHECK(puppet.ask("library") == "ok");  // the second may be where the first was
  CHECK(puppet.ask("write 0 7") == "ok");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_cow(256 * kMiB, all_owned(*agent)));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("write 0 8") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  CHECK(table->missed.empty());
  REQUIRE(table->saved.size() == 1);
  CHECK(table->saved[0].original == device::Range{{a}, 4 * kMiB});
}

TEST_CASE("copy-on-write: only what is wanted is set aside") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 7") == "ok");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  const device::Range first{{a + 128 * 1024}, 64 * 1024}, second{{a + kMiB}, 128 * 1024};
  DONE(agent->begin_cow(64 * kMiB, {first, second}));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("write 0 8") == "ok");
  CHECK(puppet.ask("write 0 9") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  CHECK(table->missed.empty());
  REQUIRE(table->saved.size() == 2);
  CHECK(table->saved[0].original == first);
  CHECK(table->saved[1].original == second);
}

TEST_CASE("copy-on-write: what does not fit in the budget is told, and the program goes on") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304"), b = puppet.number("alloc 4194304");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_cow(4 * kMiB, all_owned(*agent)));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("write 0 1") == "ok");
  CHECK(puppet.ask("write 1 1") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  REQUIRE(table->saved.size() == 1);
  CHECK(table->saved[0].original.start.value == a);
  REQUIRE(table->missed.size() == 1);
  CHECK(table->missed[0] == device::Range{{b}, 4 * kMiB});
}

TEST_CASE("copy-on-write: a budget that the device's granularity would exceed is none") {
  Puppet puppet;
  puppet.number("alloc 4194304");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_cow(kMiB, all_owned(*agent)));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("fill 0 0 4096") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  CHECK(table->saved.empty());
  CHECK(table->missed.size() == 1);
}

TEST_CASE("copy-on-write: what a context has is set aside before it ends") {
  Puppet puppet;
  const uint64_t at = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 0 55") == "ok");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_cow(256 * kMiB, all_owned(*agent)));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("reset") == "ok");
  auto table = agent->saved(kSecond);
  REQUIRE(table);
  CHECK(table->missed.empty());
  size_t found = 0;
  for (const device::SavedRange& saved : table->saved) {
    if (saved.original.start.value != at) continue;
    auto fd = agent->export_saved(saved.buffer);
    REQUIRE(fd);
    CHECK(View(*fd).holds(55, 4 * kMiB, saved.offset));
    ++found;
  }
  CHECK(found == 1);
}

TEST_CASE("a call that needs memory that is not filled waits for it; others do not") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304"), b = puppet.number("alloc 4194304");
  CHECK(puppet.ask("write 1 3") == "ok");
  auto agent = puppet.agent();
  const uint64_t id = allocation_at(*agent, a).id;
  CHECK(b != a);
  stop_and_take(*agent);
  DONE(agent->begin_fill({id}));
  auto fd = agent->export_allocation(id);
  REQUIRE(fd);
  DONE(agent->unlock_api());
  CHECK(puppet.ask("check 1 3") == "ok");
  CHECK(!agent->next_demand(0).value());
  puppet.say("check 0 61");
  auto demand = agent->next_demand(10 * kSecond);
  REQUIRE(demand);
  REQUIRE(*demand);
  CHECK(**demand == std::vector<uint64_t>{id});
  // The waiting call is not in the way of the API lock.
  stop_and_take(*agent);
  {
    const View view(*fd);
    for (size_t i = 0; i < 4 * kMiB / 8; ++i) view.data[i] = word_of(61, i);
  }
  DONE(agent->filled(id));
  DONE(agent->unlock_api());
  CHECK(puppet.answer() == "ok");
}

TEST_CASE("a client that takes the filling over is told what calls wait for") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304");
  uint64_t id = 0;
  for (int client = 0; client < 2; ++client) {
    auto agent = puppet.agent();
    id = allocation_at(*agent, a).id;
    const auto hazards = agent->hazards().value();
    REQUIRE(hazards.size() == static_cast<size_t>(client));
    if (client == 1) CHECK(hazards[0].starts_with("device memory without its content (1 allocation, 4"));
    stop_and_take(*agent);
    DONE(agent->begin_fill({id}));
    DONE(agent->unlock_api());
    if (client == 0) puppet.say("fill 0 0 4096");
    auto demand = agent->next_demand(10 * kSecond);
    REQUIRE(demand);
    REQUIRE(*demand);
    CHECK(**demand == std::vector<uint64_t>{id});
  }
  DONE(puppet.agent()->filled(id));
  CHECK(puppet.answer() == "ok");
  CHECK(puppet.agent()->hazards().value().empty());
}

TEST_CASE("a context that ends takes with it what calls wait for") {
  Puppet puppet;
  puppet.number("alloc 4194304");
  const uint64_t at = puppet.number("begin-second 4194304");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_fill({allocation_at(*agent, at).id}));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("end-second") == "ok");
  CHECK(puppet.ask("graph 0") == "ok");  // a graph may touch anything
}

TEST_CASE("launches and fills are written down, and run again") {
  Puppet puppet;
  const uint64_t a = puppet.number("alloc 4194304");
  puppet.number("alloc 4194304");
  auto agent = puppet.agent();
  stop_and_take(*agent);
  DONE(agent->begin_recording(100));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("write 0 71") == "ok");
  CHECK(puppet.ask("fill 1 0 4096") == "ok");
  stop_and_take(*agent);
  auto calls = agent->recorded();
  REQUIRE(calls);
  REQUIRE(calls->size() == 2);
  CHECK((*calls)[0].writes == std::vector<device::Range>{{{a}, 4 * kMiB}});
  CHECK((*calls)[0].replayable);
  CHECK((*calls)[1].writes[0].size == 4096);
  CHECK((*calls)[1].reads.empty());
  DONE(agent->end_recording());
  DONE(agent->unlock_api());
  CHECK(puppet.ask("write 0 72") == "ok");
  stop_and_take(*agent);
  DONE(agent->replay((*calls)[0]));
  DONE(agent->drain(5 * kSecond));
  device::Launch wrong = (*calls)[0];
  wrong.record.resize(wrong.record.size() - 1);
  CHECK(!agent->replay(wrong));
  DONE(agent->unlock_api());
  CHECK(puppet.ask("check 0 71") == "ok");
}
