// What an agent answers, judged before it is used: it runs in the target, and a target is not trusted.
#pragma once

#include <string_view>
#include <vector>

#include "lib/device/target.h"
#include "plugins/cuda/agent_protocol.h"

namespace ckpt::cuda {

/// kIo, "damaged": of the wrong size, counts beyond the end, ranges that wrap or leave their buffer, owned memory that
/// does not begin and end at a chunk.
Result<agent::HelloReply> parse_hello(std::string_view payload);
Result<std::vector<agent::AllocationReply>> parse_allocations(std::string_view payload);
Result<std::vector<device::SavedRange>> parse_saved(std::string_view payload);
Result<std::vector<device::Range>> parse_ranges(std::string_view payload);
Result<std::vector<uint64_t>> parse_ids(std::string_view payload);
Result<std::vector<device::Launch>> parse_recorded(std::string_view payload);

}  // namespace ckpt::cuda
