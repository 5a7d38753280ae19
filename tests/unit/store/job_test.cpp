#include "lib/store/job.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

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
