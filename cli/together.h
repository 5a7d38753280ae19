// --together: one of many ckpts of a job, which mpirun or srun has started.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/courier.h"
#include "lib/engine/together.h"

namespace ckpt::cli {

struct TogetherFlags {
  bool together = false;
  std::string mpi = "auto";
};
/// --together, --mpi
void add_together_flags(VerbOptions& app, TogetherFlags& flags, const char* help);

/// This member's side, from the meeting to the end.
class Membership {
 public:
  /// Meets the others. Null without --together.
  static Result<std::unique_ptr<Membership>> open(const TogetherFlags& flags, Context& context);

  engine::Together& together() { return together_; }
  uint32_t rank() const { return courier_->rank(); }
  uint32_t size() const { return courier_->size(); }

  /// Runs `work`, which may do its part in a process that it forks and then returns its exit status in the context.
  /// Whatever it fails with all are told; what all fail with rank 0 tells.
  Result<void> run(const std::function<Result<void>()>& work);
  /// To be called around the part that uses `together`, in the process that does: an error that the others have told
  /// already becomes a silent end.
  Result<void> conclude(Result<void> done);
  /// There is nothing more to agree on, and the others need not wait for this process.
  void finish() { courier_->finish(); }

 private:
  Membership(std::unique_ptr<Courier> courier, Context& context)
      : courier_(std::move(courier)), together_(*courier_, context.cancel), context_(context) {}

  std::unique_ptr<Courier> courier_;
  engine::Together together_;
  Context& context_;
};

}  // namespace ckpt::cli
