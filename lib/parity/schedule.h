// Who sends what to whom, and when: a pure function of the code and of where the members run. It is data, to be carried
// out (exchange.h), simulated, or printed.
//
// Sums are made on the way, by chains: the first member of a chain sends its symbol times its factor, each further one
// adds its own and sends on, and the target adds up what the last members of all its chains send. Encoding takes a
// chain for each node: the ring inside of it, which ends at the target's own local rank and leaves the node as one
// message. In step t node i sends to node i + t + 1, so that every step is a permutation of the nodes; the last one
// stays inside. What is lost comes back by one chain through all that are left: nobody receives more than he lost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/parity/code.h"

namespace ckpt::parity {

struct Chain {
  uint32_t step = 0;
  uint32_t row = 0, target = 0;  ///< a member's symbol in a row
  std::vector<Sum::Term> hops;   ///< in this order; the last one sends to the target
};

/// Of one set, in the order in which they are carried out.
using Schedule = std::vector<Chain>;

/// `nodes`: of each member.
Schedule encoding_schedule(const ErasureCode& code, const std::vector<std::string>& nodes);
/// Empty where nothing is lost; nothing: too much is.
std::optional<Schedule> recovery_schedule(const ErasureCode& code, const std::vector<std::string>& nodes,
                                          const std::vector<Loss>& losses);

/// One message of a schedule.
struct Transfer {
  uint32_t step = 0, row = 0;
  uint32_t from = 0, to = 0;  ///< members
  uint32_t target = 0;
};
std::vector<Transfer> transfers(const Schedule& schedule);

/// The most buffers that a member needs for one block of each of its symbols and messages.
size_t buffers_needed(const Schedule& schedule, uint32_t members);

}  // namespace ckpt::parity
