// The members of seccomp in the manifest; see manifest_fields.h.
#pragma once

#include "lib/store/seccomp_image.h"

namespace ckpt::store {

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
