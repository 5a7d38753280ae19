// At which safe point the processes of a job stop, so that none of them waits for another one that has stopped. They
// call ckpt_safe_point equally often, and in step: none gets further than a collective operation that others have not
// come to. Where some stopped at their next safe point and others, being a step ahead, at the one after, the latter
// would wait for the former for ever. So all need the same number, and none may have passed it when it hears of it.
//
// Two phases, in which all members tell each other what they have seen: `need`, how far each has come, from which all
// choose the same number; and `ack`, whether each was told before it came there. If one was not, all choose a later
// one, by which those that wait already are let go. Pure; tests/unit/engine/barrier_test.cpp tries every order of the
// steps.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::engine {

/// What a member tells, of all its processes.
struct BarrierReport {
  uint64_t highest = 0;    ///< need: safe points come to, at most
  bool in_time = false;    ///< ack
};

/// The safe point at which all are to wait, in round `round` from 0. Each round leaves twice as many between, for those
/// that are slow to tell their processes.
uint64_t choose_target(const std::vector<BarrierReport>& need, unsigned round);
/// Whether all will come to wait there.
bool is_agreed(const std::vector<BarrierReport>& ack);

/// Rounds after which the members are too slow for their processes.
inline constexpr unsigned kMostBarrierRounds = 12;

}  // namespace ckpt::engine
