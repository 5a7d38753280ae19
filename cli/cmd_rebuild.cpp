// rebuild: what lost nodes took with them, from the parity that `protect` left on the others.
#include <fmt/format.h>

#include <algorithm>

#include "cli/parity_job.h"
#include "cli/plural.h"
#include "lib/base/clock.h"
#include "lib/base/text.h"

namespace ckpt::cli {

namespace {

struct RebuildFlags {
  ParityFlags job;
  bool force = false;
};

/// What is still lost afterwards.
bool is_left_over(const parity::Health& health) {
  if (!health.unknown.empty()) return true;
  for (const parity::SetHealth& set : health.sets) {
    const bool homeless = std::any_of(set.members.begin(), set.members.end(),
                                      [](const parity::MemberHealth& member) { return member.folder.empty(); });
    if (!set.repairable || homeless) return true;
  }
  return false;
}

void print_json(Console& console, const RebuildFlags& flags, const parity::Rebuilt& done, uint64_t us) {
  JsonWriter out;
  out.open('{');
  out.members("schema", "ckpt.rebuild/1", "dry_run", flags.job.dry_run, "data_of_ranks", done.data, "parity_of_ranks",
              done.parity, "bytes", done.bytes, "attempts", done.attempts, "duration_us", us);
  out.open("found", '{');
  write_health(out, done.health);
  out.close();
  console.data(std::move(out).finish());
}

Result<void> run_rebuild(Context& context, const RebuildFlags& flags) {
  CKPT_TRY_ASSIGN(ParityJob job, ParityJob::open(context, flags.job));
  Stopwatch watch;  // MPI has started
  const auto rebuilt = job.run<parity::Rebuilt>([&](parity::Rank& rank) {
    return parity::rebuild(rank, {flags.force, flags.job.dry_run});
  });
  if (!job.speaks()) return job.end_silently(rebuilt);
  if (!rebuilt) return rebuilt.error();
  const parity::Rebuilt& done = *rebuilt;
  if (context.out.json()) print_json(context.out, flags, done, watch.elapsed_us());
  for (const std::string& line : health_lines(done.health)) {
    if (!flags.job.dry_run)
      context.out.info("found: " + line);
    else if (!context.out.json())
      context.out.data(line + "\n");
  }
  const std::string subject = job.first_folder();
  if (is_left_over(done.health)) {
    const bool some = !done.data.empty() || !done.parity.empty();
    return fail(some ? Code::kPartial : Code::kCorrupt, subject,
                some ? "not all that was lost came back" : "more is lost than can be brought back");
  }
  if (flags.job.dry_run) return {};
  if (done.data.empty() && done.parity.empty()) {
    context.out.info("nothing is lost");
    return {};
  }
  context.out.info(fmt::format("brought back {} and the parity of {}: {} in {}, after {}",
                               counted(done.data.size(), "folder"), counted(done.parity.size(), "rank"),
                               human_bytes(done.bytes), human_us(watch.elapsed_us()),
                               counted(done.attempts, "attempt")));
  return {};
}

}  // namespace

Command::Run add_rebuild(VerbOptions& app) {
  auto state = std::make_shared<RebuildFlags>();
  add_parity_flags(app, state->job, "The folder of each rank, as for protect; of a lost one where it goes",
                   "Say what is lost and from whom it comes back");
  app.add_flag("--force", state->force, "Replace folders that are damaged");
  return [state](Context& context) { return run_rebuild(context, *state); };
}

}  // namespace ckpt::cli
