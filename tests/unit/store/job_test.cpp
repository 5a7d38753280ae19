#include "lib/store/job.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "lib/store/image_files.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using namespace ckpt::store;
using ckpt::test::TempDir;

namespace {

Job some_job() {
  Job out{std::string(32, 'a'), "2026-01-02T03:04:05Z", "dump", {}};
  for (int rank = 0; rank < 3; ++rank) {
    JobMember member;
    member.host = fmt::format("n{}", rank), member.boot_id = "b", member.folder = "/images/job";
    member.image_id = std::string(32, '1'), member.manifest_sha256 = std::string(64, '2');
    member.bytes = 5, member.pid = 7, member.arguments = {"train", "\"x\"", "\n"};
    member.frozen_us = 9, member.connections = 2;
    member.variables = {{"RANK", std::to_string(rank)}};
    member.processes = {{8, {{"LOCAL_RANK", "0"}, {"RANK", "1"}}}};
    out.members.push_back(member);
  }
  return out;
}

}  // namespace

TEST_CASE("job: what is written is read again") {
  TempDir temp;
  CHECK(!looks_like_job(temp.path));
  CHECK(read_job(temp.path).error().code == Code::kNotFound);
  REQUIRE(write_job(temp.path, some_job()));
  const auto again = read_job(temp.path);
  REQUIRE(again);
  CHECK(*again == some_job());
  CHECK(write_job(temp.path, some_job()).error().code == Code::kUsage);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(temp.path)) files += entry.is_regular_file() ? 1 : 100;
  CHECK(files == 1);
}

TEST_CASE("job: a link is not followed") {
  TempDir temp;
  REQUIRE(write_job(temp.path, some_job()));
  std::filesystem::create_directory(temp.path / "other");
  REQUIRE(::symlink("../job.json", (temp.path / "other" / "job.json").c_str()) == 0);
  CHECK(!looks_like_job(temp.path / "other"));
  CHECK(!read_job(temp.path / "other"));
}

TEST_CASE("job: a file of another program that has its name is none, and is not written over") {
  TempDir temp;
  const std::filesystem::path file = temp.path / "job.json";
  std::ofstream(file) << "{\"queue\": \"long\"}";
  CHECK(!looks_like_job(temp.path));
  CHECK(write_job(temp.path, some_job()).error().code == Code::kUsage);
}

TEST_CASE("job: one that is whose begin is damaged is known by its parts") {
  TempDir temp;
  REQUIRE(write_job(temp.path, some_job()));
  std::ofstream(temp.path / "job.json") << "damaged";
  CHECK(!looks_like_job(temp.path));
  std::filesystem::create_directory(temp.path / "rank-1");
  std::ofstream(temp.path / "rank-1" / kManifestName) << "{\"format\": \"ckpt.image/3\"";
  CHECK(looks_like_job(temp.path));
  CHECK(read_job(temp.path).error().code == Code::kCorrupt);
}

TEST_CASE("job: cut anywhere, or with a lie in it, it is refused") {
  const std::string text = to_json(some_job());
  REQUIRE(parse_job(text));
  for (size_t size = 0; size + 1 < text.size(); ++size) CHECK(!parse_job(text.substr(0, size)));
  auto with = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    const size_t at = out.find(from);
    REQUIRE(at != std::string::npos);
    return parse_job(out.replace(at, from.size(), to));
  };
  CHECK(with("ckpt.job/1", "ckpt.job/2").error().code == Code::kUnsupported);
  CHECK(with("ckpt.job/1", "other").error().code == Code::kCorrupt);
  CHECK(!with("\"rank-0\"", "\"../../etc\""));
  CHECK(!with("\"rank\": 0", "\"rank\": 1"));
  CHECK(!with("\"rank\": 0", "\"rank\": -1"));
  CHECK(!with(std::string(64, '2'), std::string(63, '2')));
  CHECK(!with(std::string(32, 'a'), std::string(32, 'A')));
  CHECK(!with("\"bytes\": 5", "\"bytes\": \"5\""));
  CHECK(!with("\"variables\": {", "\"variables\": 1, \"x\": {"));
  CHECK(!parse_job(std::string(100'000, '[')));
  CHECK(!parse_job(R"({"schema":"ckpt.job/1","id":"x","created":"","kind":"","parts":[]})"));
  CHECK(!parse_job(R"({"schema":"ckpt.job/1","id":"x","created":"","kind":"","parts":{"rank":{}}})"));
}

TEST_CASE("job: of an environment what says which rank it is") {
  using namespace std::string_literals;
  const auto found = rank_variables("PATH=/bin\0RANK=3\0WORLD_SIZE=8\0SECRET=x\0no\0=y\0RANKS=1\0SLURM_PROCID="s);
  CHECK(found == RankVariables{{"RANK", "3"}, {"SLURM_PROCID", ""}, {"WORLD_SIZE", "8"}});
  CHECK(rank_variables("").empty());
}

namespace {

std::vector<Place> two_by_two() {
  return {{"a", "r", {{"dp", 0}, {"tp", 0}}}, {"a", "r", {{"dp", 0}, {"tp", 1}}},
          {"b", "", {{"dp", 1}, {"tp", 0}}}, {"b", "", {{"dp", 1}, {"tp", 1}}}};
}

}  // namespace

TEST_CASE("job: ranks of the training, by the variables that say it most exactly") {
  const RankVariables agent = {{"OMPI_COMM_WORLD_RANK", "1"}};
  const RankVariables worker = {{"OMPI_COMM_WORLD_RANK", "1"}, {"RANK", "3"}};
  CHECK(training_ranks({agent, worker, {{"RANK", "2"}}}, 7) == std::vector<uint32_t>{2, 3});
  CHECK(training_ranks({{{"SLURM_PROCID", "4"}}, {{"SLURM_PROCID", "4"}}}, 7) == std::vector<uint32_t>{4});
  CHECK(training_ranks({{{"RANK", "x"}}, {}}, 7) == std::vector<uint32_t>{7});
  // The number of a node, of which torchrun knows, and the workers' own.
  CHECK(training_ranks({{{"RANK", "1"}}, {{"LOCAL_RANK", "0"}, {"RANK", "8"}}, {{"LOCAL_RANK", "1"}, {"RANK", "9"}}},
                       7) == std::vector<uint32_t>{8, 9});
}

TEST_CASE("job: which part has which rank is written, and read again") {
  const auto placed = place_ranks(two_by_two(), {{0, 1}, {2}, {3}}, "file");
  REQUIRE(placed);
  Job job = some_job();
  job.topology = *placed;
  const std::string text = to_json(job);
  const auto again = parse_job(text);
  REQUIRE(again);
  CHECK(*again == job);
  auto with = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    const size_t at = out.find(from, out.find("\"topology\""));
    REQUIRE(at != std::string::npos);
    return parse_job(out.replace(at, from.size(), to));
  };
  CHECK(!with("\"rank-2\"", "\"rank-3\""));
  CHECK(!with("\"rank-2\"", "\"rank-x\""));
  CHECK(!with("\"rank-2\"", "\"x\""));
  CHECK(!with("\"rank\": 0", "\"rank\": 1"));
  for (const char* wrong : {"\"1\"", "-1", "1.5", "1048576", "4294967297", "null"})
    CHECK_MESSAGE(!with("\"dp\": 1", fmt::format("\"dp\": {}", wrong)), wrong);
  for (const char* wrong : {"x", "DP", "\\u001b[2J", "", "tp"})
    CHECK_MESSAGE(!with("\"dp\": 1", fmt::format("\"{}\": 1", wrong)), wrong);
  CHECK(with("\"dp\": 1", "\"dp\": 0").error().message == "topology: has ranks 0 and 2 in one place");
  CHECK(!with("\"groups\": {", "\"groups\": [], \"x\": {"));
}

TEST_CASE("job: a topology of other ranks than the job's is refused by their numbers") {
  CHECK(place_ranks(two_by_two(), {{0, 1}, {2}}, "file").error().message == "tells of rank 3, which no part has");
  CHECK(place_ranks(two_by_two(), {{0, 1}, {2, 3, 4}}, "file").error().message ==
        "says nothing of rank 4, which rank-1 has");
  CHECK_FALSE(place_ranks(two_by_two(), {{0, 1}, {1, 2, 3}}, "file"));
}

TEST_CASE("job: parts that have replicas, and those that have the first of them") {
  const auto apart = place_ranks(two_by_two(), {{0}, {1}, {2}, {3}}, "file");
  CHECK(replica_parts(*apart) == std::vector<std::vector<uint32_t>>{{0, 2}, {1, 3}});
  CHECK(first_replicas(*apart, 4) == std::vector<bool>{true, true, false, false});
  const auto by_node = place_ranks(two_by_two(), {{0, 1}, {2, 3}}, "file");
  CHECK(replica_parts(*by_node) == std::vector<std::vector<uint32_t>>{{0, 1}});
  CHECK(first_replicas(*by_node, 2) == std::vector<bool>{true, false});
  CHECK(first_replicas({}, 2) == std::vector<bool>{true, true});
  CHECK(replica_parts({}).empty());
}
