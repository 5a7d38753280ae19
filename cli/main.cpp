// Parse, dispatch, the one catch, the exit code.
#include <fcntl.h>
#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <new>

#include "cli/command.h"
#include "cli/inherited_signals.h"
#include "cli/options.h"
#include "cli/progress.h"

namespace {

ckpt::Cancel g_cancel;
void on_stop_signal(int) { g_cancel.request(); }
void on_progress_signal(int) { ckpt::cli::Progress::request_line(); }

/// The first SIGINT, SIGTERM or SIGHUP asks for an orderly end. Not SA_RESTART: a blocking wait must notice.
void install_signals() {
  struct sigaction sa{};
  sa.sa_handler = on_stop_signal;
  for (int sig : {SIGINT, SIGTERM, SIGHUP}) sigaction(sig, &sa, nullptr);
  sa.sa_flags = SA_RESTART;
  sa.sa_handler = on_progress_signal;
  sigaction(SIGUSR1, &sa, nullptr);
  sa.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &sa, nullptr);
  sigaction(SIGXFSZ, &sa, nullptr);  // a limit on the size of files is an error of the write
}

/// Descriptors 0 to 2 stay what they are for: a file opened under a missing number would receive what is printed. A missing
/// stdout becomes one that cannot be written, so that lost data is an error.
void keep_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::cli::GlobalOptions options;
  try {
    keep_standard_descriptors();
    ckpt::cli::remember_signals();
    install_signals();
    return ckpt::cli::run_command_line(argc, argv, options, g_cancel);
  } catch (const std::bad_alloc&) {
    ckpt::cli::report_error(ckpt::Error(ckpt::Code::kNoRoom, "", "out of memory"), options);
    return ckpt::exit_code(ckpt::Code::kNoRoom);
  } catch (const std::exception& e) {
    ckpt::cli::report_error(ckpt::Error(ckpt::Code::kBug, "", fmt::format("unexpected: {}", e.what())), options);
    return ckpt::exit_code(ckpt::Code::kBug);
  }
}
