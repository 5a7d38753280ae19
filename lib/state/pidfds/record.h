// Pidfds: what the manifest says of them.
#pragma once

namespace ckpt::store {

/// A pidfd. Its flags (O_NONBLOCK; O_EXCL: of a thread) are those of the descriptor.
struct ProcessHandle {
  int pid = -1;  ///< -1: a process that has ended and been waited for
  bool operator==(const ProcessHandle&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<ProcessHandle> h) {
  a.number("pid", h.pid, -1);
}

}  // namespace ckpt::store
