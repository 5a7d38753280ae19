#include "lib/state/seccomp/restore.h"

#include <fmt/format.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>

namespace ckpt::restore {

namespace {

struct Program {  // struct sock_fprog
  uint16_t length;
  uint16_t pad[3];
  uint64_t instructions;
};

/// How many filters, from the oldest on, every thread has.
size_t common_length(const store::Seccomp& seccomp) {
  if (seccomp.threads.empty()) return 0;
  const auto& first = seccomp.threads[0].chain;
  size_t length = first.size();
  for (const auto& thread : seccomp.threads) {
    auto end = std::mismatch(first.begin(), first.begin() + static_cast<ptrdiff_t>(length), thread.chain.begin(),
                             thread.chain.end());
    length = static_cast<size_t>(end.first - first.begin());
  }
  return length;
}

void install(const store::SeccompFilter& filter, bool speculation, unsigned long flags, RestorerArea& area,
             SyscallBatch& batch) {
  if (filter.log) flags |= SECCOMP_FILTER_FLAG_LOG;
  if (speculation) flags |= SECCOMP_FILTER_FLAG_SPEC_ALLOW;
  Program program{static_cast<uint16_t>(filter.program.size() / 8), {}, 0};
  program.instructions = area.put_bytes(std::as_bytes(std::span(filter.program)));
  batch.add("install a seccomp filter", SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, area.put(program));
}

}  // namespace

Result<void> check_seccomp(const store::Seccomp& seccomp, size_t threads) {
  if (!seccomp.threads.empty() && seccomp.threads.size() != threads)
    return fail(Code::kCorrupt, "seccomp", "the image has it for another number of threads");
  for (const auto& filter : seccomp.filters) {
    if (filter.program.size() % 8 != 0) return fail(Code::kCorrupt, "seccomp", "a filter is cut short");
  }
  for (const auto& thread : seccomp.threads) {
    for (uint32_t index : thread.chain) {
      if (index >= seccomp.filters.size())
        return fail(Code::kCorrupt, "seccomp", fmt::format("filter {} is not in the image", index));
    }
  }
  return {};
}

void install_common_filters(const store::Seccomp& seccomp, RestorerArea& area, SyscallBatch& leader) {
  for (size_t i = 0; i < common_length(seccomp); ++i) {
    const auto& first = seccomp.threads[0];
    install(seccomp.filters[first.chain[i]], first.speculation, SECCOMP_FILTER_FLAG_TSYNC, area, leader);
  }
}

void install_own_filters(const store::Seccomp& seccomp, RestorerArea& area, std::vector<SyscallBatch>& threads) {
  size_t common = common_length(seccomp);
  for (size_t t = 0; t < seccomp.threads.size(); ++t) {
    const auto& thread = seccomp.threads[t];
    for (size_t i = common; i < thread.chain.size(); ++i)
      install(seccomp.filters[thread.chain[i]], thread.speculation, 0, area, threads[t]);
    if (thread.mode == SECCOMP_MODE_STRICT)
      threads[t].add("enter seccomp's strict mode", SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, 0);
  }
}

}  // namespace ckpt::restore
