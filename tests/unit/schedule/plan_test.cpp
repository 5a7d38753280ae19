#include "lib/schedule/plan.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

using namespace ckpt::schedule;

namespace {

constexpr double kHour = 3600, kDay = 24 * kHour;

bool near(double a, double b, double part) { return std::abs(a - b) <= part * std::abs(b); }

/// Rounds of a rhythm, with failures drawn one by one: what expected_cost computes, by trying.
double simulated_overhead(const std::vector<Level>& levels, const Rhythm& rhythm, int rounds, unsigned seed) {
  std::mt19937_64 random(seed);
  double rate = 0;
  for (const Level& level : levels) rate += level.rate;
  const double near_share = levels.size() == 2 ? levels[0].rate / rate : 0;
  double clock = 0;
  // True once `length` has passed; else the level that the failure needs.
  auto pass = [&](double length, size_t& needs) {
    const double until = -std::log1p(-std::generate_canonical<double, 53>(random)) / rate;
    clock += std::min(length, until);
    if (until >= length) return true;
    needs = std::generate_canonical<double, 53>(random) < near_share ? 0 : levels.size() - 1;
    return false;
  };
  for (int round = 0; round < rounds; ++round) {
    for (uint64_t i = 0; i < rhythm.every;) {
      const bool far_too = levels.size() == 2 && i + 1 == rhythm.every;
      size_t needs = 0;
      if (pass(rhythm.period_s + levels[0].save_s + (far_too ? levels[1].save_s : 0), needs)) {
        ++i;
        continue;
      }
      for (size_t worse = needs; !pass(levels[needs].restore_s, worse);) needs = std::max(needs, worse);
      if (needs + 1 == levels.size()) i = 0;
    }
  }
  return clock / (rounds * static_cast<double>(rhythm.every) * rhythm.period_s) - 1;
}

}  // namespace

TEST_CASE("plan: Young's and Daly's periods of the survey's table") {
  struct Row {
    double save, mtbf, young, daly;
  };
  for (const Row& row : {Row{0.2, 3 * kHour, 65.7, 65.6}, Row{102, 3 * kHour, 1484, 1417}, Row{0.2, kDay, 185.9, 185.8},
                         Row{102, kDay, 4198, 4131}, Row{1.2, kDay, 455.4, 454.6}, Row{195, kDay, 5805, 5676}}) {
    CHECK(near(young_period(row.save, row.mtbf), row.young, 1e-3));
    CHECK(near(daly_period(row.save, row.mtbf), row.daly, 1e-3));
  }
}

TEST_CASE("plan: Daly's equation 37 by hand, and its end at twice the mean time between failures") {
  // d = 2, M = 1: part = 1, sqrt(4) * (1 + 1/3 + 1/9) - 2 = 8/9; the formula's own end is at M
  CHECK(daly_period(2 - 1e-12, 1) == doctest::Approx(8.0 / 9));
  CHECK(daly_period(2, 1) == 1);
  CHECK(daly_period(5, 1) == 1);
  CHECK(daly_period(1e-9, 1e6) == doctest::Approx(young_period(1e-9, 1e6)).epsilon(1e-6));
}

TEST_CASE("plan: one level costs what Daly's equation 20 says") {
  for (const auto& [save, restore, mtbf, period] :
       {std::tuple{5.0, 10.0, 360.0, 60.0}, std::tuple{102.0, 300.0, 3 * kHour, 1417.0},
        std::tuple{9.0, 0.0, 3.0, 4.0}}) {
    const double wanted = mtbf * std::exp(restore / mtbf) * std::expm1((period + save) / mtbf) / period - 1;
    const Cost cost = expected_cost({{save, restore, 0, 1 / mtbf}}, {period, 1});
    CHECK(near(cost.overhead, wanted, 1e-9));
    CHECK(cost.saving == doctest::Approx(save / period));
    CHECK(cost.saving + cost.restoring + cost.lost == doctest::Approx(cost.overhead));
  }
}

TEST_CASE("plan: a failure costs half a period and half a save where failures are rare") {
  const Cost cost = expected_cost({{1, 0, 0, 1e-7}}, {1000, 1});
  CHECK(near(cost.lost_s, 500.5, 1e-3));
  CHECK(cost.restoring == 0);
}

TEST_CASE("plan: the exact period solves Daly's condition, and his formula is close to it") {
  for (double save : {0.2, 102.0, 3000.0}) {
    const double mtbf = 3 * kHour;
    const double exact = best_rhythm({{save, 30, 0, 1 / mtbf}}, Model::kExact)->period_s;
    // The derivative of equation 20 is zero: (t/M - 1) e^((t+d)/M) = -1
    CHECK((exact / mtbf - 1) * std::exp((exact + save) / mtbf) == doctest::Approx(-1).epsilon(1e-5));
    CHECK(near(daly_period(save, mtbf), exact, 0.01));
  }
}

TEST_CASE("plan: a simulation with failures drawn one by one costs what the formulas say") {
  const std::vector<Level> one = {{102, 300, 0, 1 / (3 * kHour)}};
  CHECK(near(simulated_overhead(one, {1417, 1}, 60'000, 1), expected_cost(one, {1417, 1}).overhead, 0.02));
  const std::vector<Level> harsh = {{2, 5, 0, 1.0 / 30}};
  CHECK(near(simulated_overhead(harsh, {9, 1}, 100'000, 2), expected_cost(harsh, {9, 1}).overhead, 0.02));
  const std::vector<Level> two = {{2, 10, 0, 1 / (2 * kHour)}, {102, 600, 0, 1 / (8 * kHour)}};
  CHECK(near(simulated_overhead(two, {200, 9}, 20'000, 3), expected_cost(two, {200, 9}).overhead, 0.02));
  const std::vector<Level> rough = {{1, 8, 0, 1.0 / 60}, {6, 20, 0, 1.0 / 200}};
  CHECK(near(simulated_overhead(rough, {12, 4}, 40'000, 4), expected_cost(rough, {12, 4}).overhead, 0.02));
}

TEST_CASE("plan: of two levels that cost and fail alike only their sum matters") {
  // The second level at every save: a round is a period, and either failure leads back to its start.
  const std::vector<Level> two = {{3, 20, 0, 1e-4}, {4, 20, 0, 3e-4}};
  const std::vector<Level> one = {{7, 20, 0, 4e-4}};
  CHECK(expected_cost(two, {100, 1}).overhead == doctest::Approx(expected_cost(one, {100, 1}).overhead));
}

TEST_CASE("plan: two levels, first order, are the published optimum") {
  // Benoit et al.: overhead sqrt(2 r1 d1) + sqrt(2 r2 d2), the period of each level sqrt(2 d / r).
  const std::vector<Level> levels = {{1, 0, 0, 4e-6}, {100, 0, 0, 1e-6}};  // k = sqrt(4 * 100) = 20
  const Rhythm rhythm = *best_rhythm(levels, Model::kYoung);
  CHECK(rhythm.every == 20);
  CHECK(rhythm.period_s == doctest::Approx(std::sqrt(2 * 1 / 4e-6)));
  CHECK(rhythm.period_s * 20 == doctest::Approx(std::sqrt(2 * 100 / 1e-6)));
  const double published = std::sqrt(2 * 4e-6 * 1) + std::sqrt(2 * 1e-6 * 100);
  CHECK(near(expected_cost(levels, rhythm).overhead, published, 0.02));
  CHECK_FALSE(best_rhythm(levels, Model::kDaly).has_value());
}

TEST_CASE("plan: no rhythm beside the exact one costs less") {
  for (const auto& levels : {std::vector<Level>{{102, 300, 0, 1 / (3 * kHour)}},
                             std::vector<Level>{{2, 10, 0, 1 / (2 * kHour)}, {102, 600, 0, 1 / (8 * kHour)}},
                             std::vector<Level>{{0.2, 1, 0, 1 / kDay}, {0.4, 2, 0, 1 / kHour}}}) {
    const Rhythm best = *best_rhythm(levels, Model::kExact);
    const double least = expected_cost(levels, best).overhead;
    for (double factor : {0.5, 0.9, 1.1, 2.0})
      CHECK(expected_cost(levels, {best.period_s * factor, best.every}).overhead > least);
    for (Model model : {Model::kYoung, Model::kDaly}) {
      if (auto other = best_rhythm(levels, model)) CHECK(expected_cost(levels, *other).overhead >= least - 1e-9);
    }
    if (levels.size() == 2 && best.every > 1)
      CHECK(expected_cost(levels, {best.period_s * 1.01, best.every - 1}).overhead >= least);
  }
}

TEST_CASE("plan: dearer saves and rarer failures make longer periods") {
  double last = 0;
  for (double save : {0.1, 1.0, 10.0, 100.0, 1000.0}) {
    const double period = best_rhythm({{save, 0, 0, 1 / kHour}}, Model::kExact)->period_s;
    CHECK(period > last);
    last = period;
  }
  for (double mtbf : {1.0, 2.0, 100.0}) {
    const double period = best_rhythm({{5, 0, 0, 1 / (mtbf * kHour)}}, Model::kExact)->period_s;
    CHECK(period < best_rhythm({{5, 0, 0, 1 / (mtbf * kHour * 2)}}, Model::kExact)->period_s);
  }
}

TEST_CASE("plan: where failures come faster than saves nothing gets anywhere") {
  CHECK(std::isinf(expected_cost({{1e6, 0, 0, 1}}, {1, 1}).overhead));
  CHECK(expected_cost({{1e6, 0, 0, 1}}, {1, 1}).efficiency() == 0);
}

TEST_CASE("plan: limits") {
  const std::vector<Level> levels = {{102, 60, 0, 1 / (3 * kHour)}};
  Limits limits;
  const Plan free = make_plan(levels, Model::kExact, limits);
  CHECK(free.bound == Plan::Bound::kNone);

  SUBCASE("a limit of the saves' overhead makes the period longer") {
    limits.saving = 0.035;
    const Plan plan = make_plan(levels, Model::kExact, limits);
    CHECK(plan.bound == Plan::Bound::kSaving);
    CHECK(plan.rhythm.period_s == doctest::Approx(102 / 0.035));
    CHECK(plan.cost.overhead > free.cost.overhead);
  }
  SUBCASE("and one that is kept anyway changes nothing") {
    limits.saving = 0.5;
    CHECK(make_plan(levels, Model::kExact, limits).rhythm.period_s == free.rhythm.period_s);
  }
  SUBCASE("a save ends before the next one begins") {
    const std::vector<Level> slow = {{0.2, 0, 436, 1 / (3 * kHour)}};
    const Plan plan = make_plan(slow, Model::kExact, limits);
    CHECK(plan.bound == Plan::Bound::kWriting);
    CHECK(plan.rhythm.period_s == 436);
  }
  SUBCASE("saves come after whole steps") {
    limits.step_s = 2.1;
    const Plan plan = make_plan(levels, Model::kExact, limits);
    CHECK(plan.steps == static_cast<uint64_t>(free.rhythm.period_s / 2.1));
    CHECK(plan.rhythm.period_s <= free.rhythm.period_s);
    limits.saving = 0.035;  // 2914.3 s are 1387.8 steps: one more keeps to the limit
    CHECK(make_plan(levels, Model::kExact, limits).steps == 1388);
    limits.step_s = 1e6;
    const Plan one = make_plan(levels, Model::kExact, limits);
    CHECK(one.steps == 1);
    CHECK(one.bound == Plan::Bound::kStep);
  }
  SUBCASE("an SLA has a range of periods that keep it, or none") {
    limits.efficiency = 0.85;
    const Plan plan = make_plan(levels, Model::kExact, limits);
    CHECK(plan.keeps_efficiency);
    CHECK(plan.shortest_s < plan.rhythm.period_s);
    CHECK(plan.longest_s > plan.rhythm.period_s);
    CHECK(expected_cost(levels, {plan.shortest_s, 1}).efficiency() == doctest::Approx(0.85).epsilon(1e-6));
    CHECK(expected_cost(levels, {plan.longest_s, 1}).efficiency() == doctest::Approx(0.85).epsilon(1e-6));
    limits.efficiency = 0.99;
    CHECK_FALSE(make_plan(levels, Model::kExact, limits).keeps_efficiency);
  }
}
