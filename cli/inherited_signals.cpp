#include "cli/inherited_signals.h"

#include <array>
#include <csignal>

#include "cli/progress.h"
#include "lib/base/signals.h"

namespace ckpt::cli {

namespace {

constexpr std::array kHandled = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ, SIGCHLD};
std::array<struct sigaction, kHandled.size()> g_before;
bool g_known = false;
Cancel* g_cancel = nullptr;

void on_stop_signal(int) { g_cancel->request(); }
void on_progress_signal(int) { Progress::request_line(); }

/// Not SA_RESTART for what asks for an end: a blocking wait must notice.
void handle(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction sa{};
  sa.sa_handler = handler;
  sa.sa_flags = flags;
  sigaction(signal, &sa, nullptr);
}

}  // namespace

void take_signals(Cancel& cancel) {
  for (size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], nullptr, &g_before[i]);
  g_known = true;
  g_cancel = &cancel;
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(signal)) handle(signal, on_stop_signal);
  }
  if (!is_ignored(SIGUSR1)) handle(SIGUSR1, on_progress_signal, SA_RESTART);
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);  // a limit on the size of files is an error of the write
  handle(SIGCHLD, SIG_DFL);  // ignored, it lets the kernel reap children that are waited for
}

void obey_sigterm() { handle(SIGTERM, on_stop_signal); }

void restore_signals() {
  for (size_t i = 0; g_known && i < kHandled.size(); ++i) sigaction(kHandled[i], &g_before[i], nullptr);
}

}  // namespace ckpt::cli
