#include "cli/criu/front.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <new>

#include "cli/criu/images.h"
#include "cli/criu/log.h"
#include "cli/criu/options.h"
#include "cli/criu/rpc.h"
#include "cli/criu/work.h"
#include "cli/guard.h"
#include "cli/inherited_signals.h"
#include "lib/engine/restore.h"

namespace ckpt::cli::criu {

namespace {

int end_with(Log& log, const Error& error) {
  log.error(error);
  return 1;
}

/// The command takes ckpt's place, and the process is its child.
int execute(const std::vector<std::string>& command, Log& log) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  restore_signals();
  ::execvp(words[0], words.data());
  return end_with(log, sys_error(command[0], "cannot be executed; the process has been restored"));
}

int run_restore(Task& task) {
  auto report = restore(task);
  if (!report) return end_with(task.log, report.error());
  if (!task.options.exec_command.empty()) return execute(task.options.exec_command, task.log);
  if (task.options.detach) return 0;
  if (report->status >= 0) return report->status;
  auto end = engine::supervise(report->pid, task.cancel);
  return end ? end->shell_status() : end_with(task.log, end.error());
}

int run_capture(Task& task, bool pre_dump) {
  auto work = [&]() -> int {
    auto done = capture(task, pre_dump);
    return done ? 0 : end_with(task.log, done.error());
  };
  return run_guarded(work, task.cancel) == 0 ? 0 : 1;
}

int run_check(const std::string& feature, Log& log) {
  auto done = check(feature);
  if (!done) return end_with(log, done.error());
  if (feature.empty()) fmt::print("Looks good.\n");
  return 0;
}

/// Nothing of a parent is stored twice, so nothing can be taken out of it.
int run_dedup(Task& task) {
  std::error_code ec;
  if (!std::filesystem::exists(find_image(task.options.images_dir), ec))
    return end_with(task.log, Error(Code::kNotFound, task.options.images_dir.string(), "holds no image"));
  task.log.note("an image of ckpt stores nothing that its parents hold: nothing is removed");
  return 0;
}

int run_folder_command(const CommandLine& line, Log& log, const Cancel& cancel) {
  Task task{line.options, log, cancel, {}, {}};
  if (auto entered = enter_folders(task); !entered) return end_with(log, entered.error());
  if (line.command == "restore") return run_restore(task);
  if (line.command == "dedup") return run_dedup(task);
  return run_capture(task, line.command == "pre-dump");
}

}  // namespace

std::optional<std::vector<std::string>> words_for_criu(int argc, const char* const* argv) {
  if (argc < 1) return std::nullopt;
  if (std::filesystem::path(argv[0]).filename() == "criu") return std::vector<std::string>(argv + 1, argv + argc);
  if (argc < 2 || std::string_view(argv[1]) != "criu") return std::nullopt;
  // Help on the verb is ckpt's, like that of every verb.
  return argc == 2 || std::string_view(argv[2]) == "--help" || std::string_view(argv[2]) == "-h"
             ? std::nullopt
             : std::optional(std::vector<std::string>(argv + 2, argv + argc));
}

int run(const std::vector<std::string>& words, const Cancel& cancel) {
  Log log(Options().log_level);
  auto line = parse_command_line(words);
  if (!line) return end_with(log, line.error());
  if (line->command == "help") return fmt::print("{}", help_text()), 0;
  if (line->command == "version")
    return fmt::print("Version: {}.{}.{}\nckpt {}, in criu's place\n", kMajor, kMinor, kSublevel, CKPT_VERSION), 0;
  if (line->command == "check") return run_check(line->options.feature, log);
  if (line->command == "swrk") return serve(line->socket, line->options, cancel);
  return run_folder_command(*line, log, cancel);
}

}  // namespace ckpt::cli::criu
