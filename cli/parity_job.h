// protect, rebuild and verify --parity are done by many ranks together: folders on one command line, each a rank that
// is a thread here, or processes that mpirun has started, each with its own folder.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/base/json_writer.h"
#include "lib/parity/group.h"
#include "plugins/mpi/transport.h"

namespace ckpt::cli {

struct ParityFlags {
  std::vector<std::string> folders;
  std::string topology, mpi = "auto";
  uint64_t max_memory = uint64_t{256} << 20;
  bool dry_run = false;
};

/// DIR, --dry-run, both with their help, --topology and --mpi.
void add_parity_flags(VerbOptions& app, ParityFlags& flags, const char* folders, const char* dry_run);

class ParityJob {
 public:
  /// Starts MPI where ckpt was started by it. kUsage: folders and topology do not go together; under MPI, where all
  /// ranks end with the same error, `run` says so.
  static Result<ParityJob> open(Context& context, const ParityFlags& flags);

  /// Whether this process tells what came of it: of many that MPI has started one does.
  bool speaks() const { return transport_ == nullptr || transport_->rank() == 0; }
  /// What the others return: all of them know of the same error, and the one that speaks ends with it. But not of a
  /// failure of MPI.
  template <class T>
  Result<void> end_silently(const Result<T>& done) const {
    return done || done.error().subject != mpi::kSubject ? Result<void>() : Result<void>(done.error());
  }
  const std::string& first_folder() const { return folders_.front(); }

  /// Calls `work` once on each rank that this process is and returns what it returned on the first one: the others' is
  /// the same.
  template <class T>
  Result<T> run(const std::function<Result<T>(parity::Rank&)>& work) {
    CKPT_TRY(placed_);
    std::optional<Result<T>> first;
    Result<void> done = run_ranks([&](parity::Rank& rank) -> Result<void> {
      Result<T> out = work(rank);
      Result<void> well = out ? Result<void>() : Result<void>(out.error());
      if (transport_ != nullptr || rank.transport.rank() == 0) first.emplace(std::move(out));
      return well;
    });
    if (!done) return done.error();
    return std::move(*first);
  }

 private:
  explicit ParityJob(Context& context) : context_(context) {}
  Result<void> check_launch() const;
  Result<void> place_folders(const ParityFlags& flags);
  Result<void> place_ranks(const ParityFlags& flags);
  Result<Place> own_place(const ParityFlags& flags) const;
  Result<void> run_ranks(const std::function<Result<void>(parity::Rank&)>& work);

  Context& context_;
  std::unique_ptr<Transport> transport_;          ///< MPI; none: threads
  std::vector<std::string> folders_;              ///< of the ranks that this process is
  std::vector<Place> places_;
  Result<void> placed_;
  uint64_t memory_ = 0;
};

/// Of a set: what is not whole, a line each, and what repairs it. Data of verify, notes of rebuild.
std::vector<std::string> health_lines(const parity::Health& health);
/// As members of the document that is being written.
void write_health(JsonWriter& out, const parity::Health& health);

/// `verify --parity`: exit code 0 whole, 1 not.
Result<void> verify_parity(Context& context, const ParityFlags& flags);

}  // namespace ckpt::cli
