// Parse, dispatch, the one catch, the exit code.
#include <fcntl.h>
#include <fmt/format.h>

#include <exception>
#include <new>

#include "cli/command.h"
#include "cli/criu/front.h"
#include "cli/inherited_signals.h"
#include "cli/options.h"
#include "lib/base/linkage.h"
#include "lib/base/program_cancel.h"
#include "lib/state/landlock/capture.h"

namespace {

ckpt::Cancel g_cancel;

/// Descriptors 0 to 2 stay what they are for: a file opened under a missing number would receive what is printed. A
/// missing stdout becomes one that cannot be written, so that lost data is an error.
void keep_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (ckpt::capture::is_outsider(argc, argv)) ckpt::capture::wait_as_outsider();
  ckpt::cli::GlobalOptions options;
  try {
    keep_standard_descriptors();
    ckpt::keep_look_ups_to_files();
    ckpt::cli::take_signals(g_cancel);
    ckpt::set_program_cancel(g_cancel);
    if (auto words = ckpt::cli::criu::words_for_criu(argc, argv)) return ckpt::cli::criu::run(*words, g_cancel);
    return ckpt::cli::run_command_line(argc, argv, options, g_cancel);
  } catch (const std::bad_alloc&) {
    ckpt::cli::report_error(ckpt::Error(ckpt::Code::kNoRoom, "", "out of memory"), options);
    return ckpt::exit_code(ckpt::Code::kNoRoom);
  } catch (const std::exception& e) {
    ckpt::cli::report_error(ckpt::Error(ckpt::Code::kBug, "", fmt::format("unexpected: {}", e.what())), options);
    return ckpt::exit_code(ckpt::Code::kBug);
  }
}
