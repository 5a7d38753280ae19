#include "lib/model/convert/rank.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

namespace ckpt::model {

namespace {

constexpr unsigned kMostParts = 100'000;

std::optional<unsigned> parse_number(std::string_view text) {
  unsigned out = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

/// What launchers set for each process. `besides`: set by this launcher alone.
struct Launcher {
  const char* index;
  const char* count;
  const char* besides;
};
// torchrun: docs of torch.distributed.elastic. Open MPI: mpirun(1), "Exported environment variables". srun(1), "Output
// environment variables": SLURM_STEP_NUM_TASKS exists in a step alone, SLURM_PROCID also in a batch script.
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr},
    {"PMI_RANK", "PMI_SIZE", nullptr},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"},
};

Result<std::optional<Rank>> from_launcher(const Launcher& launcher, const Environment& environment) {
  const auto index = environment(launcher.index), count = environment(launcher.count);
  if (!index || !count || (launcher.besides != nullptr && !environment(launcher.besides))) return std::optional<Rank>();
  const auto i = parse_number(*index), n = parse_number(*count);
  if (!i || !n || *i >= *n || *n > kMostParts) {
    return fail(Code::kUsage, launcher.index, fmt::format("is {}, and {} is {}", *index, launcher.count, *count));
  }
  return std::optional(Rank{{*i, *n}, launcher.index});
}

/// sbatch(1): arrays may be any set of numbers; those that follow one another at equal steps say which part a task is.
Result<std::optional<Rank>> from_array(const Environment& environment) {
  const auto id = environment("SLURM_ARRAY_TASK_ID");
  if (!id) return std::optional<Rank>();
  auto number = [&](const char* name, unsigned otherwise) {
    const auto text = environment(name);
    return text ? parse_number(*text) : std::optional(otherwise);
  };
  const auto i = parse_number(*id), count = number("SLURM_ARRAY_TASK_COUNT", 0),
             first = number("SLURM_ARRAY_TASK_MIN", 0);
  const auto last = number("SLURM_ARRAY_TASK_MAX", 0), step = number("SLURM_ARRAY_TASK_STEP", 1);
  const bool regular = i && count && first && last && step && *step > 0 && *count > 0 && *count <= kMostParts &&
                       *i >= *first && *i <= *last && (*last - *first) / *step + 1 == *count &&
                       (*i - *first) % *step == 0;
  if (!regular) {
    return Error(Code::kUsage, "SLURM_ARRAY_TASK_ID", "is of an array whose tasks do not follow one another")
        .with_hint("give --part INDEX/COUNT");
  }
  return std::optional(Rank{{(*i - *first) / *step, *count}, "SLURM_ARRAY_TASK_ID"});
}

/// Kubernetes, "Indexed Job": the number of completions is not told to the pods.
Result<std::optional<Rank>> from_kubernetes(const Environment& environment, std::optional<unsigned> count) {
  const auto index = environment("JOB_COMPLETION_INDEX");
  if (!index) return std::optional<Rank>();
  if (!count) {
    return Error(Code::kUsage, "JOB_COMPLETION_INDEX",
                 "says which of the pods this is, but nothing says how many there are")
        .with_hint("give --part auto/COUNT");
  }
  const auto i = parse_number(*index);
  if (!i || *i >= *count)
    return fail(Code::kUsage, "JOB_COMPLETION_INDEX", fmt::format("is {}, of {}", *index, *count));
  return std::optional(Rank{{*i, *count}, "JOB_COMPLETION_INDEX"});
}

Result<Rank> find_automatically(const Environment& environment, std::optional<unsigned> count) {
  std::vector<Rank> found;
  for (const Launcher& launcher : kLaunchers) {
    CKPT_TRY_ASSIGN(auto rank, from_launcher(launcher, environment));
    if (rank) found.push_back(*rank);
  }
  CKPT_TRY_ASSIGN(auto array, from_array(environment));
  if (array) found.push_back(*array);
  CKPT_TRY_ASSIGN(auto pod, from_kubernetes(environment, count));
  if (pod) found.push_back(*pod);
  if (found.empty()) {
    return Error(Code::kUsage, "--part auto", "nothing in the environment says which part this is")
        .with_hint("give --part INDEX/COUNT, INDEX counted from 0");
  }
  for (const Rank& rank : found) {
    if (rank.part.count > 1) return rank;
  }
  return found.front();
}

}  // namespace

Result<Rank> find_rank(const std::string& text, const Environment& environment) {
  const size_t slash = text.find('/');
  const std::string index = text.substr(0, slash);
  const auto count = slash == std::string::npos ? std::nullopt : parse_number(std::string_view(text).substr(slash + 1));
  if (slash != std::string::npos && (!count || *count == 0 || *count > kMostParts))
    return fail(Code::kUsage, "--part " + text, "is no INDEX/COUNT");
  if (index == "auto") {
    CKPT_TRY_ASSIGN(Rank rank, find_automatically(environment, count));
    if (count && rank.part.count != *count) {
      return fail(Code::kUsage, "--part " + text,
                  fmt::format("does not go with {}, which is of {}", rank.found_in, rank.part.count));
    }
    return rank;
  }
  const auto i = parse_number(index);
  if (!i || !count || *i >= *count)
    return fail(Code::kUsage, "--part " + text, "is no INDEX/COUNT, with INDEX below COUNT");
  return Rank{{*i, *count}, ""};
}

}  // namespace ckpt::model
