// plan: how often to save, from what a save costs and how often a job fails.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/command.h"
#include "cli/plural.h"
#include "cli/save_cost.h"
#include "lib/base/duration.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/schedule/plan.h"

namespace ckpt::cli {

namespace {

using schedule::Cost;
using schedule::Level;
using schedule::Limits;
using schedule::Model;
using schedule::Plan;
using schedule::Rhythm;

struct PlanFlags {
  std::string mtbf, node_mtbf, save_cost, restore_cost = "0", memory_save_cost, memory_restore_cost;
  uint64_t nodes = 0;  ///< 0: one
  std::optional<uint64_t> write_rate;
  std::string step_time, max_overhead, sla, memory_share, model = "exact";
};

constexpr std::array<std::pair<const char*, Model>, 3> kModels = {
    {{"young", Model::kYoung}, {"daly", Model::kDaly}, {"exact", Model::kExact}}};

double seconds(uint64_t us) { return static_cast<double>(us) / 1e6; }
uint64_t microseconds(double s) {
  return std::isfinite(s) ? static_cast<uint64_t>(std::llround(std::clamp(s, 0.0, 9e12) * 1e6)) : 0;
}
std::string in_words(double s) { return std::isfinite(s) ? format_duration(microseconds(s)) : "never"; }
std::string percent(double part) {
  if (!std::isfinite(part)) return "never ends";
  return part < 0.1 ? fmt::format("{:.2f} %", part * 100) : fmt::format("{:.1f} %", part * 100);
}

Result<double> parse_positive(const std::string& text, const std::string& option) {
  CKPT_TRY_ASSIGN(const uint64_t us, parse_duration(text, option));
  if (us == 0) return fail(Code::kUsage, option, "has to be longer than nothing");
  return seconds(us);
}

/// What the flags say, in numbers.
struct Question {
  std::vector<Level> levels;
  std::vector<SaveCost> saves;  ///< of each level
  double job_rate = 0, node_rate = 0;
  uint64_t nodes = 0;  ///< 0: nothing was said of nodes
  Limits limits;
  Model model = Model::kExact;
};

Result<void> read_failures(const PlanFlags& flags, Question& out) {
  if (flags.nodes != 0 && flags.node_mtbf.empty()) return fail(Code::kUsage, "--nodes", "goes with --node-mtbf");
  if (!flags.mtbf.empty()) {
    CKPT_TRY_ASSIGN(const double mtbf, parse_positive(flags.mtbf, "--mtbf"));
    out.job_rate = 1 / mtbf;
  }
  if (!flags.node_mtbf.empty()) {
    CKPT_TRY_ASSIGN(const double mtbf, parse_positive(flags.node_mtbf, "--node-mtbf"));
    out.nodes = std::max<uint64_t>(flags.nodes, 1);
    out.node_rate = static_cast<double>(out.nodes) / mtbf;
  }
  if (out.job_rate + out.node_rate > 0) return {};
  return Error(Code::kUsage, "plan", "--mtbf or --node-mtbf is required")
      .with_hint("--mtbf 3h: the job fails every three hours; --nodes 128 --node-mtbf 50d: one of 128 nodes does");
}

Result<void> read_levels(const PlanFlags& flags, Context& context, Question& out) {
  auto level = [&](const std::string& save, const std::string& save_option, const std::string& restore,
                   const std::string& restore_option) -> Result<void> {
    CKPT_TRY_ASSIGN(SaveCost cost, find_save_cost(save, flags.write_rate, save_option, context));
    CKPT_TRY_ASSIGN(const uint64_t restore_us, parse_duration(restore, restore_option));
    if (cost.stall_us == 0) {
      return Error(Code::kUsage, save_option, "a save that costs nothing can be made all the time")
          .with_hint("name what it costs: 200ms");
    }
    out.levels.push_back({seconds(cost.stall_us), seconds(restore_us), seconds(cost.write_us), 0});
    out.saves.push_back(std::move(cost));
    return {};
  };
  const bool two = !flags.memory_save_cost.empty();
  if (!two && !flags.memory_restore_cost.empty())
    return fail(Code::kUsage, "--memory-restore-cost", "goes with --memory-save-cost");
  if (two) {
    CKPT_TRY(level(flags.memory_save_cost, "--memory-save-cost",
                   flags.memory_restore_cost.empty() ? "0" : flags.memory_restore_cost, "--memory-restore-cost"));
  }
  CKPT_TRY(level(flags.save_cost, "--save-cost", flags.restore_cost, "--restore-cost"));
  const double all = out.job_rate + out.node_rate;
  if (!two) {
    if (!flags.memory_share.empty()) return fail(Code::kUsage, "--memory-share", "goes with --memory-save-cost");
    out.levels[0].rate = all;
    return {};
  }
  out.levels[0].rate = out.job_rate;
  if (!flags.memory_share.empty()) {
    CKPT_TRY_ASSIGN(const double share, parse_part(flags.memory_share, "--memory-share"));
    out.levels[0].rate = all * share;
  }
  out.levels[1].rate = all - out.levels[0].rate;
  if (out.levels[0].rate > 0 && out.levels[1].rate > all * 1e-9) return {};
  return Error(Code::kUsage, "--memory-save-cost", "two levels need failures of both kinds")
      .with_hint("--mtbf for those that leave memory as it is, --node-mtbf for lost nodes; or --memory-share 75%");
}

Result<Question> read_question(const PlanFlags& flags, Context& context) {
  Question out;
  CKPT_TRY(read_failures(flags, out));
  CKPT_TRY(read_levels(flags, context, out));
  if (!flags.step_time.empty()) {
    CKPT_TRY_ASSIGN(out.limits.step_s, parse_positive(flags.step_time, "--step-time"));
  }
  if (!flags.max_overhead.empty()) {
    CKPT_TRY_ASSIGN(out.limits.saving, parse_part(flags.max_overhead, "--max-overhead"));
  }
  if (!flags.sla.empty()) {
    CKPT_TRY_ASSIGN(out.limits.efficiency, parse_part(flags.sla, "--sla"));
  }
  for (const auto& [name, model] : kModels) {
    if (flags.model == name) out.model = model;
  }
  if (out.model == Model::kDaly && out.levels.size() == 2)
    return fail(Code::kUsage, "--model daly", "Daly's formula is for one level: young or exact have two");
  return out;
}

const char* level_name(const Question& question, size_t i) {
  return question.levels.size() == 2 && i == 0 ? "memory" : "storage";
}

const char* bound_name(Plan::Bound bound) {
  switch (bound) {
    case Plan::Bound::kNone:
      return "none";
    case Plan::Bound::kSaving:
      return "max-overhead";
    case Plan::Bound::kWriting:
      return "write-time";
    case Plan::Bound::kStep:
      return "step-time";
  }
  return "";
}

std::string bound_text(const Plan& plan, const PlanFlags& flags) {
  switch (plan.bound) {
    case Plan::Bound::kNone:
      return "";
    case Plan::Bound::kSaving:
      return fmt::format("; longer than the best one, for --max-overhead {}", flags.max_overhead);
    case Plan::Bound::kWriting:
      return "; longer than the best one: a save has to be written before the next begins";
    case Plan::Bound::kStep:
      return "; longer than the best one: a step takes so long";
  }
  return "";
}

/// The same job with its failures so many times as frequent.
std::vector<Level> scaled(std::vector<Level> levels, double factor) {
  for (Level& level : levels) level.rate *= factor;
  return levels;
}
constexpr std::array<double, 2> kSensitivity = {2, 0.5};

void write_cost(JsonWriter& json, const Cost& cost) {
  auto finite = [](double value) { return std::isfinite(value) ? std::optional<double>(value) : std::nullopt; };
  json.members("overhead", finite(cost.overhead), "saving", finite(cost.saving), "restoring", finite(cost.restoring),
               "lost", finite(cost.lost), "lost_us", microseconds(cost.lost_s), "efficiency", cost.efficiency());
}

void write_rhythm(JsonWriter& json, const Question& question, const Rhythm& rhythm) {
  json.members("period_us", microseconds(rhythm.period_s), "every", rhythm.every, "storage_period_us",
               microseconds(rhythm.period_s * static_cast<double>(rhythm.every)));
  if (question.limits.step_s > 0)
    json.member("steps", static_cast<uint64_t>(std::clamp(rhythm.period_s / question.limits.step_s + 1e-9, 1.0, 1e18)));
}

std::string document(const Question& question, const Plan& plan) {
  JsonWriter json;
  json.open('{');
  json.members("schema", "ckpt.plan/1");
  json.open("failures", '{');
  json.members("mtbf_us", microseconds(1 / (question.job_rate + question.node_rate)), "job_rate", question.job_rate,
               "node_rate", question.node_rate, "nodes", question.nodes);
  json.close();
  json.open("levels", '[');
  for (size_t i = 0; i < question.levels.size(); ++i) {
    const Level& level = question.levels[i];
    json.row_of("name", level_name(question, i), "save_us", question.saves[i].stall_us, "write_us",
                question.saves[i].write_us, "restore_us", microseconds(level.restore_s), "rate", level.rate, "bytes",
                question.saves[i].bytes, "source", question.saves[i].source);
  }
  json.close();
  json.open("models", '[');
  for (const auto& [name, model] : kModels) {
    const auto rhythm = schedule::best_rhythm(question.levels, model);
    if (!rhythm) continue;
    json.open('{');
    json.member("model", name);
    write_rhythm(json, question, *rhythm);
    write_cost(json, schedule::expected_cost(question.levels, *rhythm));
    json.close();
  }
  json.close();
  json.open("plan", '{');
  for (const auto& [name, model] : kModels) {
    if (model == question.model) json.member("model", name);
  }
  write_rhythm(json, question, plan.rhythm);
  write_cost(json, plan.cost);
  json.member("bound", bound_name(plan.bound));
  if (question.limits.efficiency) {
    json.members("sla", *question.limits.efficiency, "sla_kept", plan.keeps_efficiency, "sla_shortest_us",
                 microseconds(plan.shortest_s), "sla_longest_us", microseconds(plan.longest_s));
  }
  json.close();
  json.open("sensitivity", '[');
  for (double factor : kSensitivity) {
    const std::vector<Level> levels = scaled(question.levels, factor);
    json.open('{');
    json.members("failures_factor", factor, "best_period_us",
                 microseconds(schedule::best_rhythm(levels, Model::kExact)->period_s));
    write_cost(json, schedule::expected_cost(levels, plan.rhythm));
    json.close();
  }
  json.close();
  return std::move(json).finish();
}

std::vector<std::string> rhythm_cells(const Question& question, const Rhythm& rhythm) {
  std::vector<std::string> out = {in_words(rhythm.period_s)};
  if (question.levels.size() == 2) {
    out.push_back(std::to_string(rhythm.every));
    out.push_back(in_words(rhythm.period_s * static_cast<double>(rhythm.every)));
  }
  if (question.limits.step_s > 0)
    out.push_back(fmt::format("{:.0f}", std::max(1.0, std::floor(rhythm.period_s / question.limits.step_s + 1e-9))));
  return out;
}

std::vector<std::string> cost_cells(const Cost& cost) {
  return {percent(cost.saving),  percent(cost.restoring), percent(cost.lost),
          in_words(cost.lost_s), percent(cost.overhead),  fmt::format("{:.4f}", cost.efficiency())};
}

void print_table(Console& out, const Question& question, const Plan& plan) {
  std::vector<std::string> header = {"MODEL", "PERIOD"};
  if (question.levels.size() == 2) header.insert(header.end(), {"TO STORAGE", "EVERY"});
  if (question.limits.step_s > 0) header.push_back("STEPS");
  header.insert(header.end(), {"SAVING", "RESTORING", "LOST", "PER FAILURE", "OVERHEAD", "T_IDEAL/T_REAL"});
  std::vector<std::vector<std::string>> rows;
  auto row = [&](const std::string& name, const Rhythm& rhythm, const Cost& cost) {
    std::vector<std::string> cells = {name};
    for (auto& more : {rhythm_cells(question, rhythm), cost_cells(cost)})
      cells.insert(cells.end(), more.begin(), more.end());
    rows.push_back(std::move(cells));
  };
  for (const auto& [name, model] : kModels) {
    if (auto rhythm = schedule::best_rhythm(question.levels, model))
      row(name, *rhythm, schedule::expected_cost(question.levels, *rhythm));
  }
  row("plan", plan.rhythm, plan.cost);
  std::vector<size_t> right;
  for (size_t i = 1; i < header.size(); ++i) right.push_back(i);
  out.table(header, rows, right);
}

void print_text(Console& out, const PlanFlags& flags, const Question& question, const Plan& plan) {
  std::string failures = fmt::format("failures  one in {}", in_words(1 / (question.job_rate + question.node_rate)));
  if (question.nodes > 0 && question.job_rate > 0) {
    failures += fmt::format(" (of the job one in {}, of its nodes one in {})", in_words(1 / question.job_rate),
                            in_words(1 / question.node_rate));
  }
  out.data(failures + "\n");
  for (size_t i = 0; i < question.levels.size(); ++i) {
    const Level& level = question.levels[i];
    std::string line =
        fmt::format("{:<10}a save {} ({})", level_name(question, i), in_words(level.save_s), question.saves[i].source);
    if (level.write_s > 0) line += fmt::format(", durable after {}", in_words(level.write_s));
    line += fmt::format(", a restore {}", level.restore_s > 0 ? in_words(level.restore_s) : "not counted");
    if (question.levels.size() == 2) line += fmt::format(", for one failure in {}", in_words(1 / level.rate));
    out.data(line + "\n");
  }
  if (!std::isfinite(plan.cost.overhead)) return;
  out.data("\n");
  print_table(out, question, plan);
  const bool two = question.levels.size() == 2;
  std::string line =
      fmt::format("\nsave every {}{}{}", in_words(plan.rhythm.period_s),
                  plan.steps > 0 ? " (" + counted(plan.steps, "step") + ")" : "",
                  bound_text(plan, flags));
  if (two && plan.rhythm.every == 1)
    line += ", each time to storage as well";
  else if (two)
    line += fmt::format(", each {}. time to storage as well", plan.rhythm.every);
  out.data(line + "\n");
  for (double factor : kSensitivity) {
    const std::vector<Level> levels = scaled(question.levels, factor);
    const Rhythm best = *schedule::best_rhythm(levels, Model::kExact);
    out.data(fmt::format("{} as many failures: overhead {}, at best {} (every {})\n", factor > 1 ? "twice" : "half",
                         percent(schedule::expected_cost(levels, plan.rhythm).overhead),
                         percent(schedule::expected_cost(levels, best).overhead), in_words(best.period_s)));
  }
  if (question.limits.efficiency && plan.keeps_efficiency) {
    out.data(fmt::format("T_ideal/T_real of {} is kept by periods from {} to {}\n", *question.limits.efficiency,
                         in_words(plan.shortest_s), in_words(plan.longest_s)));
  }
}

Result<void> run_plan(Context& context, const PlanFlags& flags) {
  CKPT_TRY_ASSIGN(const Question question, read_question(flags, context));
  const Plan plan = schedule::make_plan(question.levels, question.model, question.limits);
  if (context.out.json())
    context.out.data(document(question, plan));
  else
    print_text(context.out, flags, question, plan);
  if (!std::isfinite(plan.cost.overhead))
    return fail(Code::kMismatch, "plan", "the job fails so often that it never ends, however it is saved");
  if (plan.keeps_efficiency) return {};
  Error error(Code::kMismatch, "--sla " + flags.sla,
              fmt::format("cannot be kept: T_ideal/T_real is {:.4f} at best{}", plan.cost.efficiency(),
                          plan.bound == Plan::Bound::kNone ? "" : " with what limits the period"));
  return std::move(error).with_hint("a cheaper save, a faster restore or fewer failures would help");
}

}  // namespace

Command::Run add_plan(VerbOptions& app) {
  auto state = std::make_shared<PlanFlags>();
  app.add_option("--mtbf", state->mtbf, "Mean time between failures of the job, but for those of its nodes")
      .type_name("TIME");
  app.add_option("--node-mtbf", state->node_mtbf, "Mean time between failures of one node").type_name("TIME");
  app.add_option("--nodes", state->nodes, "Nodes of the job (default 1)").in_range(1, 100'000'000).type_name("N");
  app.add_saved("--save-cost", Saved::kEither, state->save_cost,
                "How long the job stands still for a save; or a folder of such saves, to find out")
      .required()
      .type_name("TIME|DIR");
  app.add_option("--write-rate", state->write_rate,
                 "Bytes a second that a checkpoint is written with (default: measured in its folder)")
      .as_size()
      .type_name("SIZE");
  app.add_option("--restore-cost", state->restore_cost, "From a failure until the job computes again (default 0)")
      .type_name("TIME");
  app.add_saved("--memory-save-cost", Saved::kEither, state->memory_save_cost,
                "Two levels: saves to memory as well, which failures of the job leave, and lost nodes do not")
      .type_name("TIME|DIR");
  app.add_option("--memory-restore-cost", state->memory_restore_cost, "As --restore-cost, from memory (default 0)")
      .type_name("TIME");
  app.add_option("--memory-share", state->memory_share,
                 "So many of all failures leave the memory (default: those of --mtbf)")
      .type_name("PART");
  app.add_option("--step-time", state->step_time, "The job saves after whole steps, which take so long")
      .type_name("TIME");
  app.add_option("--max-overhead", state->max_overhead, "Saves may hold the job up for at most this part of its work")
      .type_name("PART");
  app.add_option("--sla", state->sla, "T_ideal/T_real has to be at least this: else exit code 1").type_name("PART");
  app.add_option("--model", state->model, "young, daly or exact (default): what the period is taken from")
      .one_of({"young", "daly", "exact"})
      .type_name("MODEL");
  return [state](Context& context) { return run_plan(context, *state); };
}

}  // namespace ckpt::cli
