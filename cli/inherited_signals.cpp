#include "cli/inherited_signals.h"

#include <array>
#include <csignal>

namespace ckpt::cli {

namespace {

constexpr std::array kHandled = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ};
std::array<struct sigaction, kHandled.size()> g_before;
bool g_known = false;

}  // namespace

void remember_signals() {
  for (size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], nullptr, &g_before[i]);
  g_known = true;
}

void restore_signals() {
  for (size_t i = 0; g_known && i < kHandled.size(); ++i) sigaction(kHandled[i], &g_before[i], nullptr);
}

}  // namespace ckpt::cli
