#include "lib/state/memory_policies/restore.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace ckpt::restore {

namespace {

/// The kernel reads one bit less than it is told.
struct Nodes {
  std::vector<uint64_t> words;
  uint64_t bits = 0;
};

Nodes mask_of(const store::MemoryPolicy& policy) {
  Nodes out;
  for (int node : policy.nodes) {
    auto word = static_cast<size_t>(node) / 64;
    if (out.words.size() <= word) out.words.resize(word + 1);
    out.words[word] |= uint64_t{1} << (node % 64);
  }
  out.bits = out.words.empty() ? 0 : out.words.size() * 64 + 1;
  return out;
}

uint64_t put(const Nodes& nodes, RestorerArea& area) {
  return nodes.words.empty() ? 0 : area.put_bytes(std::as_bytes(std::span(nodes.words)));
}

}  // namespace

void check_policy(const store::MemoryPolicy& policy, const std::string& subject, Reasons& reasons) {
  auto exists = [](int node) {
    return ::access(fmt::format("/sys/devices/system/node/node{}", node).c_str(), F_OK) == 0;
  };
  constexpr int kMostNodes = 1024;
  bool sane =
      std::all_of(policy.nodes.begin(), policy.nodes.end(), [](int node) { return node >= 0 && node < kMostNodes; });
  if (!sane)
    return reasons.add(Code::kCorrupt, fmt::format("{}: its NUMA policy names a node that cannot be", subject));
  if (policy.nodes.empty() || std::any_of(policy.nodes.begin(), policy.nodes.end(), exists)) return;
  reasons.add(Code::kUnsupported,
              fmt::format("{}: its NUMA policy is for nodes that this machine does not have", subject));
}

void set_mapping_policy(const store::MemoryPolicy& policy, uint64_t start, uint64_t end, RestorerArea& area,
                        SyscallBatch& batch) {
  Nodes nodes = mask_of(policy);
  batch.add("set a mapping's NUMA policy", SYS_mbind, start, end - start, policy.mode, put(nodes, area), nodes.bits, 0);
}

void set_thread_policy(const store::MemoryPolicy& policy, RestorerArea& area, SyscallBatch& batch) {
  Nodes nodes = mask_of(policy);
  batch.add("set the NUMA policy", SYS_set_mempolicy, policy.mode, put(nodes, area), nodes.bits);
}

}  // namespace ckpt::restore
