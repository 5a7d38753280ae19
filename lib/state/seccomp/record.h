// seccomp filters: what the manifest says of them.
#pragma once

#include <cstddef>
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

inline constexpr size_t kSeccompMaxProgram = 4096 * 8;  // BPF_MAXINSNS

template <class A>
void describe(A& a, typename A::template Of<SeccompFilter> f) {
  a.flag("log", f.log);
  a.octets("program", f.program, 8, kSeccompMaxProgram);
}

template <class A>
void describe(A& a, typename A::template Of<ThreadSeccomp> t) {
  a.number("mode", t.mode, 0, 2);
  a.flag("speculation", t.speculation);
  a.numbers("chain", t.chain);
}

template <class A>
void describe(A& a, typename A::template Of<Seccomp> s) {
  a.list("filters", s.filters);
  a.list("threads", s.threads);
}

}  // namespace ckpt::store
