// Handlers and queued signals: what the manifest says of them.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::store {

/// A queued signal: siginfo_t as PTRACE_PEEKSIGINFO gives it (128 bytes), kept as hex in the manifest.
struct QueuedSignal {
  int signo = 0;
  std::vector<uint8_t> siginfo;
  bool operator==(const QueuedSignal&) const = default;
};

struct SignalAction {
  int signo = 0;
  uint64_t handler = 0;   ///< 0 SIG_DFL, 1 SIG_IGN, else an address
  uint64_t flags = 0;     ///< SA_*, SA_RESTORER included
  uint64_t restorer = 0;
  uint64_t mask = 0;
  bool operator==(const SignalAction&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<QueuedSignal> s) {
  a.number("signo", s.signo, 1, 64);
  a.octets("siginfo", s.siginfo, 128, 128);
}

template <class A>
void describe(A& a, typename A::template Of<SignalAction> s) {
  a.number("signo", s.signo, 1, 64);
  a.hex("handler", s.handler);
  a.hex("flags", s.flags);
  a.hex("restorer", s.restorer);
  a.hex("mask", s.mask);
}

}  // namespace ckpt::store
