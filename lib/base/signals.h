// What the caller has decided about signals.
#pragma once

#include <csignal>

namespace ckpt {

/// Whether nothing happens on this signal. Whoever started ckpt switched it off (nohup, a shell for its jobs in the
/// background) where ckpt has not done so itself: then no handler replaces that, and the signal is not passed on to
/// anybody.
inline bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace ckpt
