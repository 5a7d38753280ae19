#include "lib/schedule/saves.h"

#include <doctest/doctest.h>

#include <set>

using namespace ckpt;
using namespace ckpt::schedule;

TEST_CASE("saves: the step in a name") {
  CHECK(step_of("iter_0000100") == 100);
  CHECK(step_of("global_step100") == 100);
  CHECK(step_of("checkpoint-100") == 100);
  CHECK(step_of("step-7") == 7);
  CHECK(step_of("100") == 100);
  CHECK(step_of("epoch=3-step=100.ckpt") == 100);
  CHECK(step_of("model_00012.safetensors") == 12);
  CHECK(step_of("v1.25") == 25);
  CHECK(step_of("000000000000000012") == 12);
  for (const char* none : {"", "release", "iter_", "best.ckpt", ".5x", "1234567890123456789"})
    CHECK_FALSE(step_of(none));
}

TEST_CASE("saves: names that trainers give") {
  for (const char* name : {"iter_0000100", "global_step100", "checkpoint-100", "step_5", "12", "epoch=3-step=100.ckpt"})
    CHECK_MESSAGE(is_step_name(name), name);
  for (const char* name : {"logs_2024", "run-17", "release", "best", "mp_rank_00"}) CHECK_FALSE(is_step_name(name));
}

TEST_CASE("saves: what trackers say") {
  CHECK(parse_tracker("100")->step == 100);
  CHECK(parse_tracker(" 100\n")->step == 100);
  CHECK(parse_tracker("global_step42\n")->name == "global_step42");
  CHECK(parse_tracker("global_step42\n")->step == 42);
  CHECK(parse_tracker("release")->name == "release");
  CHECK_FALSE(parse_tracker("release")->step);
  for (const char* hostile : {"", "\n", "../../etc", "/abs/iter_5", ".hidden5"}) CHECK_FALSE(parse_tracker(hostile));
  CHECK_FALSE(parse_tracker(std::string(5000, '1')));
}

TEST_CASE("saves: DIR@latest and DIR@STEP") {
  CHECK(parse_at("run@latest")->folder == "run");
  CHECK_FALSE(parse_at("run@latest")->step);
  CHECK(parse_at("a@b/run@0000100")->folder == "a@b/run");
  CHECK(parse_at("a@b/run@0000100")->step == 100);
  CHECK(parse_at("@latest")->folder == ".");
  for (const char* none : {"run", "run@", "run@x", "user@host/run", "run@100/x", "run@-1", "run@1234567890123456789"})
    CHECK_FALSE(parse_at(none));
}

namespace {

struct Folder {
  std::vector<Candidate> candidates;
  std::set<std::string> broken;
  std::vector<std::string> asked;

  Result<Choice> choose() {
    return choose_newest("run", candidates, [&](const Candidate& one) -> Result<void> {
      asked.push_back(one.name);
      if (broken.count(one.name) != 0) return fail(Code::kCorrupt, one.name, "is cut short");
      return {};
    });
  }
};

}  // namespace

TEST_CASE("saves: the newest complete one, by number and not by name") {
  Folder folder{
      {{"checkpoint-90", order_of(90)}, {"checkpoint-1000", order_of(1000)}, {"checkpoint-200", order_of(200)}},
      {},
      {}};
  CHECK(folder.choose()->name == "checkpoint-1000");
  CHECK(folder.asked == std::vector<std::string>{"checkpoint-1000"});  // no other is opened
  folder.broken = {"checkpoint-1000"};
  const Choice next = folder.choose().value();
  CHECK(next.name == "checkpoint-200");
  CHECK(next.skipped == std::vector<std::string>{"checkpoint-1000: is cut short"});
}

TEST_CASE("saves: none is complete, none is there, two are the newest") {
  Folder folder{{{"a5", order_of(5)}, {"b5", order_of(5)}}, {"a5", "b5"}, {}};
  auto none = folder.choose();
  CHECK(none.error().code == Code::kNotFound);
  CHECK(none.error().causes.size() == 2);
  folder.broken = {"a5"};
  CHECK(folder.choose()->name == "b5");
  folder.broken = {};
  CHECK(folder.choose().error().code == Code::kUsage);
  CHECK(folder.choose().error().message == "has two that are the newest, a5 and b5");
  folder.candidates.clear();
  CHECK(folder.choose().error().code == Code::kNotFound);
}
