#include <doctest/doctest.h>

#include <map>

#include "lib/model/convert/rank.h"

using namespace ckpt;
using namespace ckpt::formats;
using namespace ckpt::model;

namespace {

using Variables = std::map<std::string, std::string>;

Result<Rank> rank_in(const std::string& text, const Variables& variables) {
  return find_rank(text, [&](const char* name) {
    auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  });
}

std::string shown(const Result<Rank>& rank) {
  if (!rank) return "no";
  return std::to_string(rank->part.index) + "/" + std::to_string(rank->part.count) + " " + rank->found_in;
}

}  // namespace

TEST_CASE("rank: what the user says counts") {
  CHECK(shown(rank_in("2/8", {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}})) == "2/8 ");
  for (const char* bad : {"", "8/8", "1", "-1/8", "1/0", "1/8x", "x/8", "auto/", "auto/0", "1/8/2", "0/100001"}) {
    CHECK_MESSAGE(rank_in(bad, {}).error().code == Code::kUsage, bad);
  }
}

TEST_CASE("rank: every launcher's variables, and none of those that only look like it") {
  CHECK(shown(rank_in("auto", {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}})) == "3/4 RANK");
  CHECK(shown(rank_in("auto", {{"RANK", "3"}, {"WORLD_SIZE", "4"}})) == "no");
  CHECK(shown(rank_in("auto", {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}})) ==
        "1/2 OMPI_COMM_WORLD_RANK");
  CHECK(shown(rank_in("auto", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})) == "1/2 PMI_RANK");
  CHECK(shown(rank_in("auto", {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_ID", "0"}})) ==
        "1/2 SLURM_PROCID");
  CHECK(shown(rank_in("auto", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})) == "no");  // a batch script
  CHECK(shown(rank_in("auto", {{"SLURM_ARRAY_TASK_ID", "7"},
                               {"SLURM_ARRAY_TASK_COUNT", "4"},
                               {"SLURM_ARRAY_TASK_MIN", "1"},
                               {"SLURM_ARRAY_TASK_MAX", "10"},
                               {"SLURM_ARRAY_TASK_STEP", "3"}})) == "2/4 SLURM_ARRAY_TASK_ID");
  CHECK(shown(rank_in("auto/6", {{"JOB_COMPLETION_INDEX", "5"}})) == "5/6 JOB_COMPLETION_INDEX");
  CHECK(shown(rank_in("auto", {{"JOB_COMPLETION_INDEX", "5"}})) == "no");
  CHECK(shown(rank_in("auto/5", {{"JOB_COMPLETION_INDEX", "5"}})) == "no");
  CHECK(shown(rank_in("auto", {})) == "no");
}

TEST_CASE("rank: one inside another: the innermost that has more than one") {
  const Variables array = {{"SLURM_ARRAY_TASK_ID", "1"}, {"SLURM_ARRAY_TASK_COUNT", "2"}, {"SLURM_ARRAY_TASK_MIN", "0"},
                           {"SLURM_ARRAY_TASK_MAX", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  CHECK(shown(rank_in("auto", array)) == "1/2 SLURM_ARRAY_TASK_ID");
  Variables step = array;
  step["SLURM_STEP_ID"] = "0";
  step["SLURM_STEP_NUM_TASKS"] = "1";
  CHECK(shown(rank_in("auto", step)) == "1/2 SLURM_ARRAY_TASK_ID");
  step["OMPI_COMM_WORLD_RANK"] = "2";
  step["OMPI_COMM_WORLD_SIZE"] = "3";
  CHECK(shown(rank_in("auto", step)) == "2/3 OMPI_COMM_WORLD_RANK");
}

TEST_CASE("rank: what contradicts itself is refused") {
  CHECK_FALSE(rank_in("auto", {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}}));
  CHECK_FALSE(rank_in("auto/3", {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}));
  CHECK_FALSE(rank_in("auto", {{"SLURM_ARRAY_TASK_ID", "3"},
                               {"SLURM_ARRAY_TASK_COUNT", "3"},
                               {"SLURM_ARRAY_TASK_MIN", "1"},
                               {"SLURM_ARRAY_TASK_MAX", "7"}}));  // 1, 3, 7
}
