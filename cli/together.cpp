#include "cli/together.h"

#include <fmt/format.h>

#include "cli/ranks.h"

namespace ckpt::cli {

void add_together_flags(VerbOptions& app, TogetherFlags& flags, const char* help) {
  app.add_flag("--together", flags.together, help);
  add_mpi_flag(app, flags.mpi);
}

Result<std::unique_ptr<Membership>> Membership::open(const TogetherFlags& flags, Context& context) {
  std::unique_ptr<Membership> out;
  if (!flags.together) return out;
  const auto kind = launched_by(flags.mpi);
  if (!kind) {
    return Error(Code::kUsage, "--together", "nothing connects this ckpt with others")
        .with_hint("start it once on each node by mpirun or srun --mpi (ckpt-together(7))");
  }
  CKPT_TRY_ASSIGN(auto courier, Courier::start([kind] { return connect_ranks(*kind); }, context.cancel));
  out.reset(new Membership(std::move(courier), context));
  return out;
}

Result<void> Membership::run(const std::function<Result<void>()>& work) {
  Result<void> done = work();
  // A process that it has forked may have ended before it could tell anybody why.
  const bool silent = done && context_.exit_status != 0 && !together_.has_ended();
  Result<void> told =
      silent
          ? conclude(Error(Code::kIo, "--together", fmt::format("this member has ended with {}", context_.exit_status)))
          : conclude(std::move(done));
  finish();
  return told;
}

Result<void> Membership::conclude(Result<void> done) {
  if (done) return done;
  Error error = std::move(done).error();
  if (!together_.has_ended()) error = together_.fail(std::move(error));
  if (!together_.is_common(error) || rank() == 0) return error;
  context_.exit_status = exit_code(error.code);
  return {};
}

}  // namespace ckpt::cli
