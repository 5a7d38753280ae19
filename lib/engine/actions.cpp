#include "lib/engine/actions.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>

#include "lib/base/core_filter.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"

namespace ckpt::engine {

namespace {

/// Between fork and exec: only what is safe there. ckpt's own descriptors close on exec.
[[noreturn]] void become(const char* script, char* const* environment) {
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  put_core_filter_back();
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  char* const arguments[] = {const_cast<char*>(script), nullptr};
  ::execve(script, arguments, environment);
  ::_exit(127);
}

Result<void> run_one(const std::string& script, std::vector<std::string>& variables, const Cancel& cancel) {
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  pid_t child = ::fork();
  if (child < 0) return fork_error(errno, script, "cannot be started");
  if (child == 0) become(script.c_str(), environment.data());
  for (bool asked = false;;) {
    int status = 0;
    pid_t got = ::waitpid(child, &status, WNOHANG);
    if (got == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
    if (got == child && WIFEXITED(status) && WEXITSTATUS(status) == 127)
      return fail(Code::kMismatch, script, "the action script cannot be run");
    if (got == child) {
      CKPT_TRY(cancel.check());
      return fail(Code::kMismatch, script,
                  "the action script failed (" +
                      (WIFEXITED(status) ? "exit " + std::to_string(WEXITSTATUS(status))
                                         : "signal " + std::to_string(WTERMSIG(status))) +
                      ")");
    }
    if (cancel.requested() && !std::exchange(asked, true)) ::kill(child, SIGTERM);
    timespec nap{0, 2'000'000};
    ::nanosleep(&nap, nullptr);
  }
}

}  // namespace

Result<void> Actions::check() const {
  if (status_fd < 0) return {};
  const std::string subject = "--status-fd " + std::to_string(status_fd);
  const int flags = ::fcntl(status_fd, F_GETFL);
  if (flags < 0)
    return fail(Code::kUsage, subject, "this descriptor is not open: whoever waits for the byte would wait for ever");
  if ((flags & O_ACCMODE) == O_RDONLY || (flags & O_PATH) != 0)
    return fail(Code::kUsage, subject, "this descriptor is not open for writing");
  return {};
}

Result<void> Actions::run(const char* action, int pid, const std::filesystem::path& image, const Cancel& cancel) const {
  if (notify) CKPT_TRY(notify(action, pid));
  if (scripts.empty()) return {};
  std::vector<std::string> variables;
  for (const char* prefix : {"CKPT_ACTION=", "CRTOOLS_SCRIPT_ACTION="})
    variables.push_back(std::string(prefix) + action);
  for (const char* prefix : {"CKPT_PID=", "CRTOOLS_INIT_PID="}) variables.push_back(prefix + std::to_string(pid));
  for (const char* prefix : {"CKPT_IMAGE_DIR=", "CRTOOLS_IMAGE_DIR="}) variables.push_back(prefix + image.string());
  for (const std::string& script : scripts) CKPT_TRY(run_one(script, variables, cancel));
  return {};
}

void Actions::ready() const {
  if (status_fd < 0) return;
  const char byte = 0;
  // A reader that has gone away wanted to know no more.
  (void)!::write(status_fd, &byte, 1);
  ::close(status_fd);
}

}  // namespace ckpt::engine
