#include "cli/options.h"

#include <fmt/format.h>

#include "cli/command.h"

namespace ckpt::cli {

namespace {

void add_global_options(CLI::App& app, GlobalOptions& options) {
  app.add_flag("--json", options.json, "JSON on stdout, and the final error as one JSON line on stderr");
  app.add_option("--progress", options.progress, "auto, tty, plain, jsonl or none")
      ->envname("CKPT_PROGRESS")
      ->check(CLI::IsMember({"auto", "tty", "plain", "jsonl", "none"}));
  app.add_option("--color", options.color, "auto, always or never")
      ->envname("CKPT_COLOR")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app.add_flag("-q,--quiet", options.quiet, "No information on stderr beside errors");
}

}  // namespace

int run_command_line(int argc, char** argv, GlobalOptions& options, const Cancel& cancel) {
  CLI::App app("Checkpoints of live processes and of models", "ckpt");
  app.set_version_flag("--version", CKPT_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  Command::Run chosen;
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    add_global_options(*sub, options);
    Command::Run run = command.add_options(*sub);
    sub->callback([run, &chosen] { chosen = run; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    Error error(Code::kUsage, "", e.what());
    report_error(std::move(error).with_hint("ckpt --help, or ckpt VERB --help"), options);
    return exit_code(Code::kUsage);
  }
  Console console(options);
  Context context{console, null_progress(), cancel};
  Result<void> result = chosen(context);
  if (std::fflush(stdout) != 0 && errno != EPIPE && result) result = sys_error("stdout", "cannot write");
  if (result) return 0;
  report_error(result.error(), options);
  return exit_code(result.error().code);
}

}  // namespace ckpt::cli
