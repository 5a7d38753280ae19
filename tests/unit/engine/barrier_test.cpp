// Every order in which programs and ckpts may take their steps, for small jobs: the functions are those that both run.
#include "lib/engine/barrier.h"

#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lib/base/safe_point_word.h"

using namespace ckpt;
using namespace ckpt::engine;

namespace {

/// A process that works in step with the others, and comes to a safe point after each piece of work.
struct ProgramModel {
  enum At : char { kWork, kCome, kLook, kWait, kEnded } at = kWork;
  uint64_t work = 1;  ///< which piece it is in, or has just done
};

/// A ckpt with one process.
struct MemberModel {
  enum At : char { kRead, kNeed, kArm, kLook, kAck, kAwait, kStands, kGaveUp, kKilled } at = kRead;
  unsigned round = 0;
  uint64_t target = 0;
  BarrierReport report;
  unsigned told = 0;  ///< exchanges that it has taken part in
};

struct JobModel {
  std::vector<ProgramModel> programs;
  std::vector<SafePointWord> words;
  std::vector<MemberModel> members;

  std::string key() const {
    std::string out;
    auto add = [&](uint64_t value) { out += static_cast<char>(value); };
    for (size_t i = 0; i < programs.size(); ++i) {
      for (uint64_t value : {uint64_t(programs[i].at), programs[i].work, words[i].calls, words[i].target,
                             words[i].waits_at, uint64_t(members[i].at), uint64_t{members[i].round}, members[i].target,
                             members[i].report.highest, uint64_t{members[i].report.in_time}, uint64_t{members[i].told}})
        add(value);
    }
    return out;
  }
};

/// How a member chooses where its process is to wait.
using Choose = std::function<uint64_t(const std::vector<BarrierReport>& all, size_t own, unsigned round)>;

class Explorer {
 public:
  Explorer(size_t size, uint64_t pieces, bool kills, Choose choose)
      : size_(size), pieces_(pieces), kills_(kills), choose_(std::move(choose)) {}

  /// What is wrong in any order; empty: nothing.
  std::string explore() {
    JobModel first;
    first.programs.resize(size_), first.words.resize(size_), first.members.resize(size_);
    std::set<std::string> seen{first.key()};
    std::deque<JobModel> open{first};
    while (!open.empty()) {
      const JobModel world = std::move(open.front());
      open.pop_front();
      std::vector<JobModel> next;
      for (size_t i = 0; i < size_; ++i) {
        step_program(world, i, next);
        step_member(world, i, next);
      }
      if (std::string wrong = judge(world, next.empty()); !wrong.empty()) return wrong;
      for (JobModel& one : next) {
        if (seen.insert(one.key()).second) open.push_back(std::move(one));
      }
    }
    states_ = seen.size();
    return stood_ ? "" : "they never stand";
  }
  size_t states() const { return states_; }

 private:
  void step_program(const JobModel& world, size_t i, std::vector<JobModel>& out) const {
    JobModel next = world;
    ProgramModel& program = next.programs[i];
    SafePointWord& word = next.words[i];
    switch (program.at) {
      case ProgramModel::kWork:
        // A collective operation: nobody is done with it before all have begun.
        for (const ProgramModel& other : world.programs) {
          if (other.work < program.work) return;
        }
        program.at = ProgramModel::kCome;
        break;
      case ProgramModel::kCome:
        come_to_safe_point(word);
        program.at = ProgramModel::kLook;
        break;
      case ProgramModel::kLook:
        if (is_to_wait(word, word.calls)) say_waits(word, word.calls), program.at = ProgramModel::kWait;
        else go_on(program);
        break;
      case ProgramModel::kWait:
        // Its ckpt changes the heartbeat, unless it was killed.
        if (is_to_wait(word, word.calls) && world.members[i].at != MemberModel::kKilled) return;
        say_waits(word, 0);
        go_on(program);
        break;
      case ProgramModel::kEnded: return;
    }
    out.push_back(std::move(next));
  }

  void go_on(ProgramModel& program) const {
    program.at = program.work == pieces_ ? ProgramModel::kEnded : ProgramModel::kWork;
    if (program.at == ProgramModel::kWork) ++program.work;
  }

  /// Whether all have told; one that was killed, or gave up, never will.
  static bool has_met(const JobModel& world, unsigned exchange) {
    for (const MemberModel& member : world.members) {
      if (member.told < exchange) return false;
    }
    return true;
  }
  static bool is_broken(const JobModel& world) {
    for (const MemberModel& member : world.members) {
      if (member.at == MemberModel::kKilled || member.at == MemberModel::kGaveUp) return true;
    }
    return false;
  }

  void step_member(const JobModel& world, size_t i, std::vector<JobModel>& out) const {
    const MemberModel& was = world.members[i];
    if (was.at == MemberModel::kKilled || was.at == MemberModel::kGaveUp) return;
    if (kills_ && i == 0) {
      JobModel killed = world;
      killed.members[i].at = MemberModel::kKilled;
      out.push_back(std::move(killed));
    }
    if (was.at == MemberModel::kStands && !is_broken(world)) return;
    JobModel next = world;
    MemberModel& member = next.members[i];
    if (is_broken(world)) {
      next.words[i].target = 0;
      member.at = MemberModel::kGaveUp;
      out.push_back(std::move(next));
      return;
    }
    if (advance(world, next, i)) out.push_back(std::move(next));
  }

  bool advance(const JobModel& world, JobModel& next, size_t i) const {
    MemberModel& member = next.members[i];
    std::vector<BarrierReport> all;
    for (const MemberModel& other : world.members) all.push_back(other.report);
    switch (member.at) {
      case MemberModel::kRead:
        member.report = {world.words[i].calls, false};
        ++member.told, member.at = MemberModel::kNeed;
        return true;
      case MemberModel::kNeed:
        if (!has_met(world, member.told)) return false;
        member.target = choose_(all, i, member.round);
        member.at = MemberModel::kArm;
        return true;
      case MemberModel::kArm:
        next.words[i].target = member.target;
        member.at = MemberModel::kLook;
        return true;
      case MemberModel::kLook:
        // How far it had come it still tells those that have not heard it yet.
        member.report = {member.report.highest, is_in_time(world.words[i].calls, member.target)};
        ++member.told, member.at = MemberModel::kAck;
        return true;
      case MemberModel::kAck:
        if (!has_met(world, member.told)) return false;
        if (is_agreed(all)) member.at = MemberModel::kAwait;
        else ++member.round, member.at = MemberModel::kRead;
        return true;
      case MemberModel::kAwait:
        if (world.words[i].waits_at != member.target) return false;
        member.at = MemberModel::kStands;
        return true;
      default: return false;
    }
  }

  std::string judge(const JobModel& world, bool stuck) {
    bool all_stand = true, all_ended = true;
    for (size_t i = 0; i < size_; ++i) {
      all_stand &= world.members[i].at == MemberModel::kStands;
      all_ended &= world.programs[i].at == ProgramModel::kEnded;
    }
    if (all_stand) {
      stood_ = true;
      for (size_t i = 0; i < size_; ++i) {
        if (world.programs[i].at != ProgramModel::kWait) return "one does not wait";
        if (world.programs[i].work != world.programs[0].work) return "they stand at different safe points";
      }
    }
    if (stuck && !all_stand && !all_ended && !some_ended(world)) return "nobody can go on";
    return "";
  }

  /// The others wait for what it will not do any more: --timeout ends that.
  static bool some_ended(const JobModel& world) {
    for (const ProgramModel& program : world.programs) {
      if (program.at == ProgramModel::kEnded) return true;
    }
    return false;
  }

  const size_t size_;
  const uint64_t pieces_;
  const bool kills_;
  const Choose choose_;
  bool stood_ = false;
  size_t states_ = 0;
};

uint64_t as_agreed(const std::vector<BarrierReport>& all, size_t, unsigned round) { return choose_target(all, round); }

}  // namespace

TEST_CASE("barrier: in every order all wait at the same safe point, or nobody does") {
  for (const auto& [size, pieces] : std::vector<std::pair<size_t, uint64_t>>{{1, 6}, {2, 7}, {3, 3}}) {
    CAPTURE(size);
    Explorer model(size, pieces, false, as_agreed);
    CHECK(model.explore() == "");
    CHECK(model.states() > 100);
  }
}

TEST_CASE("barrier: where a ckpt is killed at any moment all programs go on") {
  Explorer model(2, 5, true, as_agreed);
  CHECK(model.explore() == "");
}

TEST_CASE("barrier: the next safe point of each is no agreement") {
  Explorer model(2, 7, false, [](const auto& all, size_t own, unsigned) { return all[own].highest + 1; });
  CHECK(model.explore() != "");
}

TEST_CASE("barrier: who was told too late chooses again with the others") {
  CHECK(choose_target({{3, false}, {5, false}}, 0) == 6);
  CHECK(choose_target({{3, false}, {5, false}}, 3) == 13);
  CHECK(is_agreed({{0, true}, {0, true}}));
  CHECK_FALSE(is_agreed({{0, true}, {0, false}}));
}
