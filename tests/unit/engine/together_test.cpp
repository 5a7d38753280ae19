#include "lib/engine/together.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <mutex>

#include "lib/base/transport.h"
#include "lib/engine/words.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using namespace ckpt::engine;
using ckpt::test::TempDir;

namespace {

/// Members that are threads. None can stop waiting.
class LocalCircle final : public Circle {
 public:
  explicit LocalCircle(Transport& transport) : transport_(transport) {}
  uint32_t rank() const override { return transport_.rank(); }
  uint32_t size() const override { return transport_.size(); }
  Result<std::vector<std::string>> gather(const std::string& mine, const Patience&) override {
    CHECK(!ended_);
    return transport_.all_gather(mine);
  }
  bool is_overdue() const override { return false; }
  Result<std::vector<std::string>> overdue(const Patience&) override { return fail(Code::kBug, "", ""); }
  void end() override { ended_ = true; }
  bool has_ended() const override { return ended_; }

 private:
  Transport& transport_;
  bool ended_ = false;
};

std::vector<uint8_t> address(const char* text, int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET, name.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, text, &name.sin_addr);
  const auto* raw = reinterpret_cast<const uint8_t*>(&name);
  return {raw, raw + sizeof name};
}

store::Socket connection(const std::vector<uint8_t>& local, const std::vector<uint8_t>& remote) {
  store::Socket out;
  out.family = AF_INET, out.type = SOCK_STREAM;
  out.state = store::SocketState::kConnected;
  out.tcp.state = 1;
  out.name = local, out.peer_name = remote;
  return out;
}

/// An image as far as a job looks at it.
void make_part(const std::filesystem::path& folder, uint32_t rank, store::Manifest& manifest) {
  manifest.id = fmt::format("{:032x}", rank + 1);
  manifest.kind = "dump";
  manifest.tree.processes.resize(1);
  std::filesystem::create_directories(folder / store::part_name(rank));
  std::ofstream(folder / store::part_name(rank) / "manifest.json") << R"({"schema": "ckpt.image/3", "rank": )" << rank;
}

constexpr const char* kSteps[] = {"join",     "connections", "ready",   "prepared", "frozen",
                                  "captured", "running",     "durable", "named"};

/// What a dump calls; it fails for a reason of its own just before `failing`.
Result<void> dump_part(Together& together, const std::filesystem::path& folder, std::string_view failing) {
  const Error broken(Code::kNoRoom, fmt::format("disk {}", together.rank()), "is full");
  auto step = [&](const char* name, auto work) -> Result<void> {
    if (name == failing) return broken;
    return work();
  };
  Together::Facts facts;
  facts.verb = "dump", facts.folder = folder, facts.freeze_timeout_us = 1'000'000;
  store::Manifest manifest;
  CKPT_TRY(step("join", [&] { return together.join(facts); }));
  CKPT_TRY(step("connections", [&]() -> Result<void> {
    auto outside = together.find_outside([] { return std::vector<ConnectionEnd>(); });
    return outside ? Result<void>() : Result<void>(outside.error());
  }));
  CKPT_TRY(step("ready", [&] { return together.ready(); }));
  CKPT_TRY(step("prepared", [&] { return together.prepared(); }));
  CKPT_TRY(step("frozen", [&]() -> Result<void> {
    auto outside = together.frozen({});
    return outside ? Result<void>() : Result<void>(outside.error());
  }));
  CKPT_TRY(step("captured", [&] { return together.captured(); }));
  CKPT_TRY(step("running", [&] { return together.running(); }));
  CKPT_TRY(step("durable", [&] { return together.durable(); }));
  CKPT_TRY(step("named", [&]() -> Result<void> {
    make_part(folder, together.rank(), manifest);
    return {};
  }));
  return together.commit(folder / store::part_name(together.rank()), manifest, null_progress());
}

/// What each of the members ends with. `failing`: the step of each, or empty.
std::vector<Result<void>> dump_all(const std::filesystem::path& folder, const std::vector<std::string>& failing) {
  const Cancel cancel;
  auto done = run_locally(static_cast<uint32_t>(failing.size()), [&](Transport& transport) -> Result<void> {
    LocalCircle circle(transport);
    Together together(circle, cancel);
    Result<void> mine = dump_part(together, folder, failing[transport.rank()]);
    if (mine) return mine;
    if (!together.has_ended()) mine = together.fail(mine.error());
    CHECK(together.has_ended());
    CHECK(together.is_common(mine.error()));
    return mine;
  });
  REQUIRE(done);
  return *done;
}

}  // namespace

TEST_CASE("together: all succeed, and the job names every part") {
  TempDir temp;
  for (const Result<void>& one : dump_all(temp.path / "job", {"", "", ""})) CHECK(one);
  const auto job = store::read_job(temp.path / "job");
  REQUIRE(job);
  CHECK(job->members.size() == 3);
  for (uint32_t rank = 0; rank < 3; ++rank) CHECK(job->members[rank].image_id == fmt::format("{:032x}", rank + 1));
  // A second one would be mixed up with it.
  for (const Result<void>& one : dump_all(temp.path / "job", {"", "", ""})) {
    REQUIRE(!one);
    CHECK(one.error().code == Code::kUsage);
  }
}

TEST_CASE("together: whoever fails wherever, all fail with the same error, and nothing is left") {
  for (const char* first : kSteps) {
    for (const char* second : {"", "join", "ready", "frozen", "named"}) {
      for (uint32_t rank = 0; rank < 3; ++rank) {
        TempDir temp;
        std::vector<std::string> failing(3);
        failing[rank] = first, failing[(rank + 1) % 3] = second;
        const auto done = dump_all(temp.path / "job", failing);
        for (const Result<void>& one : done) {
          REQUIRE(!one);
          CHECK(one.error().text() == done[0].error().text());
          CHECK(one.error().code == Code::kNoRoom);
        }
        CHECK_MESSAGE(!std::filesystem::exists(temp.path / "job" / "job.json"), first, " ", second);
        for (uint32_t other = 0; other < 3; ++other) {
          // Whoever failed before it has said so itself takes away its own part (in the engine, by its staging folder).
          const bool own = failing[other] == "named";
          CHECK((own || !std::filesystem::exists(temp.path / "job" / store::part_name(other))));
        }
      }
    }
  }
}

TEST_CASE("together: rank 0 cannot write the job's description") {
  TempDir temp;
  std::filesystem::create_directories(temp.path / "job" / "job.json");  // a folder is in its place
  const auto done = dump_all(temp.path / "job", {"", ""});
  for (const Result<void>& one : done) REQUIRE(!one);
  CHECK(done[0].error().text() == done[1].error().text());
  CHECK(done[1].error().text().find("rank 0") != std::string::npos);
  CHECK(!std::filesystem::exists(temp.path / "job" / "rank-0"));
  CHECK(!std::filesystem::exists(temp.path / "job" / "rank-1"));
}

TEST_CASE("together: members who do not do the same, or of other jobs, end at once") {
  TempDir temp;
  const Cancel cancel;
  for (int difference : {0, 1, 2}) {
    auto done = run_locally(2, [&](Transport& transport) -> Result<void> {
      LocalCircle circle(transport);
      Together together(circle, cancel);
      Together::Facts facts;
      facts.verb = difference == 0 && transport.rank() == 1 ? "dump -R" : "restore";
      facts.folder = temp.path;
      facts.job = std::string(32, difference == 1 && transport.rank() == 1 ? 'b' : 'a');
      facts.ranks = difference == 2 ? 3 : 2;
      return together.join(facts);
    });
    REQUIRE(done);
    for (const Result<void>& one : *done) {
      REQUIRE(!one);
      CHECK(one.error().code == Code::kUsage);
    }
  }
}

TEST_CASE("together: a connection is inside where a member has the other end, by name and by sequence") {
  const auto a = address("10.0.0.1", 1000), b = address("10.0.0.2", 2000), c = address("10.0.0.3", 3000);
  const auto loop1 = address("127.0.0.1", 1), loop2 = address("127.0.0.1", 2);
  auto ends = [](const std::vector<store::Socket>& sockets, const char* network = "n") {
    return connection_ends(sockets, network);
  };
  CHECK(outside_connections({ends({connection(a, b)}), ends({connection(b, a)})}, 0).empty());
  CHECK(outside_connections({ends({connection(a, c), connection(a, b)}), ends({connection(b, a)})}, 0) ==
        std::vector<size_t>{0});
  CHECK(outside_connections({ends({connection(a, b)}), ends({connection(a, b)})}, 0).size() == 1);
  // In one tree.
  CHECK(outside_connections({ends({connection(a, b), connection(b, a)})}, 0).empty());
  // An address that means another host's.
  CHECK(outside_connections({ends({connection(loop1, loop2)}), ends({connection(loop2, loop1)})}, 0).empty());
  CHECK(outside_connections({ends({connection(loop1, loop2)}, "n"), ends({connection(loop2, loop1)}, "m")}, 0).size() ==
        1);
  // Not established.
  store::Socket listening = connection(a, b);
  listening.state = store::SocketState::kListening, listening.tcp = {};
  CHECK(ends({listening}).empty());

  store::Socket one = connection(a, b), other = connection(b, a);
  one.tcp.send_sequence = 5, one.tcp.send_size = 10, one.tcp.receive_sequence = 700;  // it wraps around
  other.tcp.receive_sequence = 0xfffffffe, other.tcp.send_sequence = 800, other.tcp.send_size = 150;
  auto unfit = [&] {
    CHECK(outside_connections({ends({one}), ends({other})}, 0).empty());
    return unfit_connections({ends({one}), ends({other})}, 0).size();
  };
  CHECK(unfit() == 0);
  other.tcp.receive_sequence = 0xfffffffa;  // less than the one takes for acknowledged: lost for good
  CHECK(unfit() == 1);
  other.tcp.receive_sequence = 6;  // more than was sent: another connection
  CHECK(unfit() == 1);
  other.tcp.receive_sequence = 5, one.tcp.receive_sequence = 649;
  CHECK(unfit() == 1);
}

TEST_CASE("together: words of strangers are refused, not believed") {
  const Error error = Error(Code::kBusy, "s", "m").with_hint("h").with_target("t").with_cause("c");
  const auto again = read_word(write_word("ready", error, ""));
  REQUIRE(again);
  CHECK(again->failed);
  CHECK(again->error.text() == error.text());
  CHECK((again->error.hint == "h" && again->error.target_state == "t" && again->error.causes == error.causes));
  std::string word = write_word("ready", {}, "data");
  for (size_t size = 0; size < word.size(); ++size) CHECK(!read_word(word.substr(0, size)));
  for (const char* bad :
       {"", "[]", "{}", "1", R"({"step":"x"})", R"({"step":1,"data":""})", R"({"step":"x","error":{}})"})
    CHECK_MESSAGE(!read_word(bad), bad);
  CHECK(
      read_word(
          R"({"step":"x","error":{"code":999,"errno":0,"subject":"","message":"","hint":"","target":"","causes":[]}})")
          ->error.code == Code::kBug);
  for (const char* bad : {"", "{}x", "[[]]", "[[1,2,3]]", R"([["a","b"]])", R"([["a","b","c","d","e","f"]])"})
    CHECK_MESSAGE(!read_ends(bad), bad);
}

TEST_CASE("together: the parts with first replicas are durable before another one is written") {
  TempDir temp;
  const Cancel cancel;
  std::atomic<int> durable{0};
  const auto done = run_locally(3, [&](Transport& transport) -> Result<void> {
    LocalCircle circle(transport);
    Together together(circle, cancel);
    Together::Facts facts;
    facts.verb = "dump", facts.folder = temp.path / "job";
    facts.topology = {{"a", "", {{"dp", 1}}}, {"b", "", {{"dp", 0}}}, {"c", "", {{"dp", 2}}}};
    CKPT_TRY(together.join(facts));
    CKPT_TRY(together.place({}));
    CKPT_TRY(together.await_turn());
    const bool is_first = transport.rank() == 0;
    if (is_first) ::usleep(50'000);
    CHECK(durable.load() == (is_first ? 0 : 1));
    if (is_first) ++durable;
    return together.durable();
  });
  REQUIRE(done);
  for (const Result<void>& one : *done) CHECK(one);
}

TEST_CASE("together: nobody waits for first replicas while trees stand still, or where it may not") {
  for (const bool ends : {true, false}) {
    TempDir temp;
    const Cancel cancel;
    std::atomic<int> written{0};
    const auto done = run_locally(3, [&](Transport& transport) -> Result<void> {
      LocalCircle circle(transport);
      Together together(circle, cancel);
      Together::Facts facts;
      facts.verb = "dump", facts.folder = temp.path / "job", facts.ends_processes = ends;
      facts.topology = {{"a", "", {{"dp", 0}}}, {"b", "", {{"dp", 1}}}, {"c", "", {{"dp", 2}}}};
      CKPT_TRY(together.join(facts));
      CKPT_TRY(together.place({}));
      CKPT_TRY(together.await_turn(ends));
      ++written;
      for (int looks = 0; written.load() < 3 && looks < 1000; ++looks) ::usleep(10'000);
      CHECK(written.load() == 3);
      return together.durable();
    });
    REQUIRE(done);
    for (const Result<void>& one : *done) CHECK(one);
  }
}

TEST_CASE("together: members with other topologies are refused, and one that is of another job") {
  TempDir temp;
  const Cancel cancel;
  const std::vector<Place> two = {{"a", ""}, {"b", ""}}, three = {{"a", ""}, {"b", ""}, {"c", ""}};
  for (const bool differ : {true, false}) {
    const auto done = run_locally(2, [&](Transport& transport) -> Result<void> {
      LocalCircle circle(transport);
      Together together(circle, cancel);
      Together::Facts facts;
      facts.verb = "dump", facts.folder = temp.path / "job", facts.topology = differ ? two : three;
      facts.topology_id = differ && transport.rank() == 1 ? "x" : "y";
      CKPT_TRY(together.join(facts));
      return together.place({});
    });
    REQUIRE(done);
    for (const Result<void>& one : *done) {
      REQUIRE(!one);
      CHECK(one.error().code == Code::kUsage);
    }
  }
}
