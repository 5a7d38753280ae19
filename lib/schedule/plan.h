// How often to save: periods and what they cost, from the cost of a save and the rates of failures. Times are seconds,
// failures come as a Poisson process.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::schedule {

/// One place that saves go to, and the failures after which its newest save is what a job goes on from.
struct Level {
  double save_s = 0;     ///< the job stands still for so long
  double restore_s = 0;  ///< from the failure until the job computes again, detection and requeueing included
  double write_s = 0;    ///< a save goes on behind the job for so long: no other can begin before; 0: it does not
  double rate = 0;       ///< failures a second
};

/// J. W. Young, CACM 17(9), 1974: sqrt(2 * save * mtbf).
double young_period(double save_s, double mtbf_s);
/// J. T. Daly, FGCS 22(3), 2006, equation 37: sqrt(2dM) * (1 + sqrt(d/2M)/3 + (d/2M)/9) - d where d < 2M, else M.
double daly_period(double save_s, double mtbf_s);

/// What a rhythm of saves costs.
struct Cost {
  double overhead = 0;  ///< time beyond that of the work, as a part of it: 0.1 is 10 %; the sum of what follows
  double saving = 0;    ///< standing still for saves that are not lost
  double restoring = 0;
  double lost = 0;    ///< work, and saves, done again
  double lost_s = 0;  ///< the mean of it for a failure
  /// T_ideal / T_real.
  double efficiency() const { return 1 / (1 + overhead); }
};

/// A rhythm: work of `period_s`, then a save to the first level; each `every`-th goes to the second one as well.
struct Rhythm {
  double period_s = 0;  ///< work between two saves
  uint64_t every = 1;   ///< 1 where there is one level
};

/// The expected time of the work, exactly: saves, work and restores may all be struck by failures. For one level this
/// is Daly's equation 20, M e^(R/M) (e^((t+d)/M) - 1) for each t of work; for two the same by a recursion over the
/// saves of one round. `levels`: one or two. Infinite where the job never gets anywhere.
Cost expected_cost(const std::vector<Level>& levels, const Rhythm& rhythm);

/// `exact` minimises expected_cost; the others are formulas. For two levels `young` is the first-order optimum of
/// (d1 + d2/k)/t + r1 t/2 + r2 k t/2 (Di et al., IPDPS 2014; Benoit et al., IEEE TC 66(7), 2017), and there is no
/// `daly`.
enum class Model { kYoung, kDaly, kExact };
std::optional<Rhythm> best_rhythm(const std::vector<Level>& levels, Model model);

/// What a plan has to keep besides.
struct Limits {
  std::optional<double> saving;      ///< standing still for saves may cost at most this part of the work: 0.035
  std::optional<double> efficiency;  ///< T_ideal / T_real has to be at least this: 0.95
  double step_s = 0;                 ///< saves come after whole steps; 0: at any time
};

/// The rhythm with the least cost that keeps to the limits.
struct Plan {
  Rhythm rhythm;
  Cost cost;
  uint64_t steps = 0;                                                         ///< of a period; 0: unknown
  enum class Bound { kNone, kSaving, kWriting, kStep } bound = Bound::kNone;  ///< why it is not the model's
  bool keeps_efficiency = true;
  /// Periods between which the demanded efficiency is kept; 0 where none was demanded or none keeps it.
  double shortest_s = 0, longest_s = 0;
};
Plan make_plan(const std::vector<Level>& levels, Model model, const Limits& limits);

}  // namespace ckpt::schedule
