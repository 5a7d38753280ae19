#include "lib/state/memory_policies/capture.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstddef>

#include "lib/base/io.h"
#include "lib/base/text.h"

namespace ckpt::capture {

namespace {

using store::MemoryPolicy;

template <class T>
bool parse_number(std::string_view text, T& out, int base = 10) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return error == std::errc() && end == text.data() + text.size();
}

/// "0-3,7".
bool parse_nodes(std::string_view text, std::vector<int>& out) {
  constexpr int kMaxNodes = 1024;
  while (!text.empty()) {
    std::string_view range = take_field(text, ',');
    std::string_view first = take_field(range, '-');
    int from = 0, to = 0;
    if (!parse_number(first, from) || !parse_number(range.empty() ? first : range, to)) return false;
    if (from < 0 || to < from || to >= kMaxNodes) return false;
    for (int node = from; node <= to; ++node) out.push_back(node);
  }
  return true;
}

/// The kernel's names (mpol_to_str), in the order of MPOL_DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL, PREFERRED_MANY,
/// WEIGHTED_INTERLEAVE.
constexpr std::array<std::string_view, 7> kModes = {
    "default", "prefer", "bind", "interleave", "local", "prefer (many)", "weighted interleave"};

/// "interleave=static|balancing:0-1".
bool parse_policy(std::string_view text, MemoryPolicy& out) {
  std::string_view nodes = text;
  std::string_view name = take_field(nodes, ':');
  std::string_view flags = name;
  std::string_view mode = take_field(flags, '=');
  auto found = std::find(kModes.begin(), kModes.end(), mode);
  if (found == kModes.end()) return false;
  out.mode = static_cast<int>(found - kModes.begin());
  while (!flags.empty()) {
    std::string_view flag = take_field(flags, '|');
    constexpr int kBalancing = 1 << 13;  // MPOL_F_NUMA_BALANCING, since 5.12
    if (flag == "static")
      out.mode |= MPOL_F_STATIC_NODES;
    else if (flag == "relative")
      out.mode |= MPOL_F_RELATIVE_NODES;
    else if (flag == "balancing")
      out.mode |= kBalancing;
    else
      return false;
  }
  return parse_nodes(nodes, out.nodes);
}

/// The words of the policy: two names have a blank in them.
std::string_view policy_words(std::string_view line) {
  for (std::string_view name : kModes) {
    if (name.find(' ') == std::string_view::npos || line.substr(0, name.size()) != name) continue;
    return line.substr(0, std::min(line.find(' ', name.size()), line.size()));
  }
  return line.substr(0, std::min(line.find(' '), line.size()));
}

}  // namespace

Result<std::vector<store::MappingPolicy>> parse_numa_maps(std::string_view text) {
  std::vector<store::MappingPolicy> out;
  while (!text.empty()) {
    std::string_view line = take_field(text, '\n'), rest = line;
    store::MappingPolicy mapping;
    if (!parse_number(take_field(rest, ' '), mapping.start, 16) || !parse_policy(policy_words(rest), mapping.policy))
      return fail(Code::kIo, "numa_maps", fmt::format("\"{}\" is not in the form that this ckpt knows", line));
    if (mapping.policy.mode != MPOL_DEFAULT) out.push_back(std::move(mapping));
  }
  return out;
}

namespace {

struct PolicyAnswer {
  int mode = 0;
  int pad = 0;
  std::array<uint64_t, 16> nodes{};  // 1024, the most that any kernel is built for
};
constexpr uint64_t kNodes = 16 * 64;

Result<MemoryPolicy> decode_policy(int64_t done, const PolicyAnswer& answer) {
  if (done == -ENOSYS) return MemoryPolicy{};
  if (done < 0) return sys_error(static_cast<int>(-done), "memory policy", "cannot be read");
  MemoryPolicy out;
  out.mode = answer.mode;
  for (size_t word = 0; word < answer.nodes.size(); ++word) {
    for (uint64_t left = answer.nodes[word]; left != 0; left &= left - 1) {
      out.nodes.push_back(static_cast<int>(word) * 64 + std::countr_zero(left));
    }
  }
  return out;
}

/// `flags` 0: of the thread; MPOL_F_ADDR: of the mapping at `address`.
Result<MemoryPolicy> read_policy(proc::BorrowedThread& thread, uint64_t address, uint64_t flags) {
  PolicyAnswer answer;
  CKPT_TRY_ASSIGN(proc::RemoteAddress room, thread.put({reinterpret_cast<const std::byte*>(&answer), sizeof answer}));
  CKPT_TRY_ASSIGN(int64_t done,
                  thread.call(SYS_get_mempolicy, {proc::raw(room), proc::raw(room) + offsetof(PolicyAnswer, nodes),
                                                  kNodes + 1, address, flags, 0}));
  CKPT_TRY(thread.get({reinterpret_cast<std::byte*>(&answer), sizeof answer}));
  return decode_policy(done, answer);
}

}  // namespace

size_t ask_thread_policy(proc::CallList& calls) {
  constexpr unsigned kFirstTwo = 3;
  return calls.add("read its memory policy", SYS_get_mempolicy, {0, offsetof(PolicyAnswer, nodes), kNodes + 1, 0, 0, 0},
                   sizeof(PolicyAnswer), kFirstTwo);
}

Result<MemoryPolicy> thread_policy(const proc::CallList& calls, size_t call) {
  return decode_policy(calls.result(call), calls.written<PolicyAnswer>(call));
}

Result<MemoryPolicy> read_thread_policy(proc::BorrowedThread& thread) { return read_policy(thread, 0, 0); }

Result<std::vector<store::MappingPolicy>> read_mapping_policies(proc::BorrowedThread& leader, int pid) {
  constexpr uint64_t kLimit = 512 << 20;
  auto text = io::read_file(fmt::format("/proc/{}/numa_maps", pid), kLimit);
  if (!text && text.error().code == Code::kNotFound)
    return std::vector<store::MappingPolicy>();  // a kernel without NUMA
  if (!text) return text.error();
  CKPT_TRY_ASSIGN(auto shown, parse_numa_maps(*text));
  CKPT_TRY_ASSIGN(MemoryPolicy own, read_thread_policy(leader));
  std::vector<store::MappingPolicy> out;
  for (store::MappingPolicy& mapping : shown) {
    if (mapping.policy == own) {
      CKPT_TRY_ASSIGN(mapping.policy, read_policy(leader, mapping.start, MPOL_F_ADDR));
    }
    if (mapping.policy.mode != MPOL_DEFAULT) out.push_back(std::move(mapping));
  }
  return out;
}

}  // namespace ckpt::capture
