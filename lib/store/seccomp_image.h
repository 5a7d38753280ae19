// seccomp of a process in an image.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::store {

struct SeccompFilter {
  bool log = false;              ///< SECCOMP_FILTER_FLAG_LOG
  std::vector<uint8_t> program;  ///< struct sock_filter, 8 bytes each
  bool operator==(const SeccompFilter&) const = default;
};

struct ThreadSeccomp {
  int mode = 0;             ///< SECCOMP_MODE_*: 0 none, 1 strict, 2 filters
  bool speculation = true;  ///< false: the filters took away the freedom to speculate (SECCOMP_FILTER_FLAG_SPEC_ALLOW)
  std::vector<uint32_t> chain;  ///< indices into Seccomp::filters, oldest first
  bool operator==(const ThreadSeccomp&) const = default;
};

struct Seccomp {
  std::vector<SeccompFilter> filters;
  std::vector<ThreadSeccomp> threads;  ///< parallel to the threads of the process; empty: none has any
  bool operator==(const Seccomp&) const = default;
};

}  // namespace ckpt::store
