#include "lib/schedule/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ckpt::schedule {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

double total_rate(const std::vector<Level>& levels) {
  double sum = 0;
  for (const Level& level : levels) sum += level.rate;
  return sum;
}

/// Expected seconds spent in intervals of one kind, from the start of a round to its end.
struct Weights {
  double work = 1, restore = 1;
};

/// The time until a interval of `length` ends or is struck: the mean, and the probability that it ends.
struct Interval {
  double mean, survives;
  Interval(double length, double rate)
      : mean(rate > 0 ? -std::expm1(-rate * length) / rate : length), survives(std::exp(-rate * length)) {}
};

/// A round is `every` periods of work, each with a save to the first level; the last one has one to the second level,
/// too. X(i): expected cost from the start of period i. A failure of the first kind restores and begins the period
/// anew, one of the second kind the round. Each X(i) is a + b * X(0); a failed restore begins again.
double round_cost(const std::vector<Level>& levels, const Rhythm& rhythm, Weights weigh) {
  const double rate = total_rate(levels);
  const Level& near = levels.front();
  const Level& far = levels.back();
  const bool two = levels.size() == 2;
  const double near_share = two && rate > 0 ? near.rate / rate : 0;  // the others lead back to the round's start
  const Interval far_restore(far.restore_s, rate);
  // The restore is tried until it succeeds: X(0) + mean / survives.
  const double far_time = far_restore.survives > 0 ? weigh.restore * far_restore.mean / far_restore.survives : kNever;
  // Y: after a failure of the first kind. Y = r + s X(i) + (1 - s) (near_share Y + (1 - near_share) (far_time + X(0)))
  const Interval near_restore(near.restore_s, rate);
  const double again = 1 - (1 - near_restore.survives) * near_share;
  const double to_period = near_restore.survives / again;
  const double to_round = (1 - near_restore.survives) * (1 - near_share) / again;
  const double near_time = (weigh.restore * near_restore.mean) / again + (to_round > 0 ? to_round * far_time : 0);
  const Interval inner(rhythm.period_s + near.save_s, rate);
  const Interval last(rhythm.period_s + near.save_s + (two ? far.save_s : 0), rate);
  double a = 0, b = 0;  // X(every): the round is over
  for (uint64_t i = rhythm.every; i-- > 0;) {
    const Interval& period = i + 1 == rhythm.every ? last : inner;
    const double struck = 1 - period.survives, near_struck = struck * near_share;
    const double far_struck = struck - near_struck;
    // X(i) = mean + survives X(i+1) + near_struck (near_time + to_period X(i) + to_round X(0)) + far_struck (...)
    const double own = 1 - near_struck * to_period;
    if (own <= 0) return kNever;
    double fixed = weigh.work * period.mean + period.survives * a;
    if (near_struck > 0) fixed += near_struck * near_time;
    if (far_struck > 0) fixed += far_struck * far_time;
    a = fixed / own;
    b = (period.survives * b + near_struck * to_round + far_struck) / own;
  }
  return b < 1 ? a / (1 - b) : kNever;
}

/// The least of a function with one minimum, over the logarithm of its argument.
template <class F>
double minimise(double low, double high, F f) {
  constexpr double kGolden = 0.6180339887498949;
  double a = std::log(low), d = std::log(high);
  double b = d - kGolden * (d - a), c = a + kGolden * (d - a);
  double at_b = f(std::exp(b)), at_c = f(std::exp(c));
  for (int i = 0; i < 120 && d - a > 1e-9; ++i) {
    // Where both are infinite the finite ones are to the left: shorter periods get somewhere.
    if (at_b < at_c || (std::isinf(at_b) && std::isinf(at_c))) {
      d = c, c = b, at_c = at_b;
      b = d - kGolden * (d - a);
      at_b = f(std::exp(b));
    } else {
      a = b, b = c, at_b = at_c;
      c = a + kGolden * (d - a);
      at_c = f(std::exp(c));
    }
  }
  return std::exp((a + d) / 2);
}

/// First order: for k memory saves to one of storage t = sqrt(2 (d1 + d2/k) / (r1 + k r2)), which costs
/// sqrt(2 (d1 + d2/k) (r1 + k r2)): least at k = sqrt(r1 d2 / (r2 d1)).
double first_order_period(const std::vector<Level>& levels, double k) {
  const double save = levels[0].save_s + levels[1].save_s / k;
  return std::sqrt(2 * save / (levels[0].rate + k * levels[1].rate));
}

constexpr uint64_t kMostEvery = 10'000;

Rhythm first_order(const std::vector<Level>& levels) {
  const double ideal = std::sqrt(levels[0].rate * levels[1].save_s / (levels[1].rate * levels[0].save_s));
  auto cost = [&](uint64_t k) {
    const auto n = static_cast<double>(k);
    return (levels[0].save_s + levels[1].save_s / n) * (levels[0].rate + n * levels[1].rate);
  };
  const auto low = static_cast<uint64_t>(std::clamp(ideal, 1.0, static_cast<double>(kMostEvery)));
  const uint64_t every = cost(low) <= cost(low + 1) ? low : low + 1;
  return {first_order_period(levels, static_cast<double>(every)), every};
}

double overhead(const std::vector<Level>& levels, const Rhythm& rhythm) {
  const double work = rhythm.period_s * static_cast<double>(rhythm.every);
  return round_cost(levels, rhythm, {}) / work - 1;
}

double best_period(const std::vector<Level>& levels, uint64_t every, double start_s) {
  const double longest = std::max(start_s, 1 / total_rate(levels)) * 100;
  return minimise(std::min(start_s / 1e3, longest / 1e6), longest, [&](double period) {
    return overhead(levels, {period, every});
  });
}

/// Down or up from the first-order one, as long as it gets better.
Rhythm exact(const std::vector<Level>& levels) {
  if (levels.size() == 1) {
    const double start = std::max(young_period(levels[0].save_s, 1 / levels[0].rate), 1e-6);
    return {best_period(levels, 1, start), 1};
  }
  Rhythm best = first_order(levels);
  best.period_s = best_period(levels, best.every, best.period_s);
  double least = overhead(levels, best);
  for (const int way : {-1, 1}) {
    for (uint64_t every = best.every;;) {
      if (way < 0 && every == 1) break;
      every = way < 0 ? every - 1 : every + 1;
      const Rhythm next{best_period(levels, every, best.period_s), every};
      const double cost = overhead(levels, next);
      if (every > kMostEvery || !(cost < least - 1e-12)) break;
      best = next, least = cost;
    }
  }
  return best;
}

/// What a save costs on the mean of a round.
double mean_save(const std::vector<Level>& levels, const Rhythm& rhythm) {
  return levels[0].save_s + (levels.size() == 2 ? levels[1].save_s / static_cast<double>(rhythm.every) : 0);
}

}  // namespace

double young_period(double save_s, double mtbf_s) { return std::sqrt(2 * save_s * mtbf_s); }

double daly_period(double save_s, double mtbf_s) {
  if (save_s >= 2 * mtbf_s) return mtbf_s;
  const double part = save_s / (2 * mtbf_s);
  return std::sqrt(2 * save_s * mtbf_s) * (1 + std::sqrt(part) / 3 + part / 9) - save_s;
}

Cost expected_cost(const std::vector<Level>& levels, const Rhythm& rhythm) {
  const double work = rhythm.period_s * static_cast<double>(rhythm.every);
  Cost out;
  const double total = round_cost(levels, rhythm, {});
  out.overhead = total / work - 1;
  out.saving = mean_save(levels, rhythm) / rhythm.period_s;
  out.restoring = round_cost(levels, rhythm, {0, 1}) / work;
  out.lost = std::max(0.0, out.overhead - out.saving - out.restoring);
  // Failures come at their rate all the time, those that strike a restore included.
  const double failures = total_rate(levels) * total;
  out.lost_s = failures > 0 && std::isfinite(total) ? out.lost * work / failures : 0;
  return out;
}

std::optional<Rhythm> best_rhythm(const std::vector<Level>& levels, Model model) {
  switch (model) {
    case Model::kYoung:
      if (levels.size() == 2) return first_order(levels);
      return Rhythm{young_period(levels[0].save_s, 1 / levels[0].rate), 1};
    case Model::kDaly:
      if (levels.size() == 2) return std::nullopt;
      return Rhythm{daly_period(levels[0].save_s, 1 / levels[0].rate), 1};
    case Model::kExact:
      return exact(levels);
  }
  return std::nullopt;
}

namespace {

/// Where the efficiency crosses the demanded one, between a period that has it and one that does not.
double crossing(const std::vector<Level>& levels, Rhythm good, double bad_s, double efficiency) {
  double bad = bad_s;
  for (int i = 0; i < 200; ++i) {
    const double middle = std::sqrt(good.period_s * bad);
    const bool keeps = 1 / (1 + overhead(levels, {middle, good.every})) >= efficiency;
    (keeps ? good.period_s : bad) = middle;
  }
  return good.period_s;
}

}  // namespace

Plan make_plan(const std::vector<Level>& levels, Model model, const Limits& limits) {
  Plan out;
  std::optional<Rhythm> best = best_rhythm(levels, model);
  out.rhythm = best ? *best : *best_rhythm(levels, Model::kExact);
  // Costs rise on either side of the best period: what is kept from it takes the nearest one that is allowed.
  double least = 0;
  auto at_least = [&](double period, Plan::Bound bound) {
    least = std::max(least, period);
    if (period <= out.rhythm.period_s) return;
    out.rhythm.period_s = period;
    out.bound = bound;
  };
  if (limits.saving) at_least(mean_save(levels, out.rhythm) / *limits.saving, Plan::Bound::kSaving);
  at_least(levels[0].write_s, Plan::Bound::kWriting);
  if (levels.size() == 2) at_least(levels[1].write_s / static_cast<double>(out.rhythm.every), Plan::Bound::kWriting);
  if (limits.step_s > 0) {
    const double whole = out.rhythm.period_s / limits.step_s;
    // Down, but not below what is allowed at least.
    double steps = std::max(1.0, std::floor(whole + 1e-9));
    if (steps * limits.step_s < least * (1 - 1e-9)) steps = std::ceil(least / limits.step_s - 1e-9);
    if (whole < 1) out.bound = Plan::Bound::kStep;
    out.steps = static_cast<uint64_t>(std::min(steps, 1e18));
    out.rhythm.period_s = steps * limits.step_s;
  }
  out.cost = expected_cost(levels, out.rhythm);
  if (limits.efficiency) {
    out.keeps_efficiency = out.cost.efficiency() >= *limits.efficiency;
    if (out.keeps_efficiency) {
      out.shortest_s = std::max(least, crossing(levels, out.rhythm, out.rhythm.period_s / 1e9, *limits.efficiency));
      out.longest_s = crossing(levels, out.rhythm, out.rhythm.period_s * 1e9, *limits.efficiency);
    }
  }
  return out;
}

}  // namespace ckpt::schedule
