// protect, rebuild and verify --parity are done by many ranks together: here folders on one command line, each a rank.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/base/json_writer.h"
#include "lib/parity/group.h"

namespace ckpt::cli {

struct ParityFlags {
  std::vector<std::string> folders;
  std::string topology;
  uint64_t max_memory = uint64_t{256} << 20;
};

/// DIR..., --topology, --max-memory.
void add_parity_flags(VerbOptions& app, ParityFlags& flags);

class ParityJob {
 public:
  /// kUsage: folders and topology do not go together.
  static Result<ParityJob> open(Context& context, const ParityFlags& flags);

  /// Calls `work` once on each rank and returns what it returned on the first one: the others' is the same.
  template <class T>
  Result<T> run(const std::function<Result<T>(parity::Rank&)>& work) {
    std::optional<Result<T>> first;
    CKPT_TRY(run_ranks([&](parity::Rank& rank) -> Result<void> {
      Result<T> out = work(rank);
      Result<void> well = out ? Result<void>() : Result<void>(out.error());
      if (rank.transport.rank() == 0) first.emplace(std::move(out));
      return well;
    }));
    return std::move(*first);
  }

 private:
  explicit ParityJob(Context& context) : context_(context) {}
  Result<void> run_ranks(const std::function<Result<void>(parity::Rank&)>& work);

  Context& context_;
  std::vector<std::string> folders_;
  std::vector<parity::Place> places_;
  uint64_t memory_ = 0;
};

/// Of a set: what is not whole, a line each, and what repairs it. Data of verify, notes of rebuild.
std::vector<std::string> health_lines(const parity::Health& health);
/// As members of the document that is being written.
void write_health(JsonWriter& out, const parity::Health& health);

/// `verify --parity`: exit code 0 whole, 1 not.
Result<void> verify_parity(Context& context, const ParityFlags& flags);

}  // namespace ckpt::cli
