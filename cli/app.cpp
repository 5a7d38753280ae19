#include "cli/app.h"

namespace ckpt::cli {

namespace {

void add_global_options(CLI::App& app, GlobalOptions& options) {
  app.add_flag("--json", options.json, "JSON on stdout; the final error is one JSON line on stderr");
  app.add_option("--progress", options.progress, "auto, tty, plain, jsonl or none")
      ->type_name("FORM")
      ->check(CLI::IsMember({"auto", "tty", "plain", "jsonl", "none"}));
  app.add_option("--color", options.color, "auto, always or never; NO_COLOR counts as never")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app.add_flag("-q,--quiet", options.quiet, "Nothing on stderr but errors");
}

const char* heading(Group group) {
  switch (group) {
    case Group::kProcess: return "Live processes";
    case Group::kModel: return "Model checkpoints";
    case Group::kBoth: return "Both";
    case Group::kTool: return "Shell";
  }
  return "";
}

constexpr const char* kFooter =
    R"(Options go before or after the verb. ckpt VERB --help says more; exit codes and configuration: man ckpt

Examples:
  ckpt pre-dump -p 4711 -f before; ckpt dump -p 4711 -f now --prev before; ckpt restore -f now -d
  ckpt convert run/iter_0001000 out --to torch_dist; ckpt inspect out 'decoder.layers.**'; ckpt verify out)";

/// CLI11's help with the checks left out of the option column: descriptions name the values.
class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(28); }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    if (app->get_parent() == nullptr) return "Usage: ckpt [OPTION]... VERB [ARGUMENT]...\n";
    return CLI::Formatter::make_usage(app, std::move(name));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string out;
    const std::string type = option->get_type_name();
    if (option->get_type_size() != 0 && !option->get_positional()) out = " " + type.substr(0, type.find(':'));
    if (option->get_required()) out += " (required)";
    return out;
  }
};

}  // namespace

std::unique_ptr<CLI::App> make_app(GlobalOptions& options, Choice& choice) {
  auto app = std::make_unique<CLI::App>("ckpt: checkpoints of live processes and of models.\n", "ckpt");
  app->formatter(std::make_shared<HelpFormatter>());
  app->set_version_flag("--version", "ckpt " CKPT_VERSION, "Print the version");
  app->set_help_flag("-h,--help", "Print this help; ckpt VERB --help: that of a verb");
  app->require_subcommand(1);
  app->get_formatter()->label("OPTIONS", "OPTION...");
  add_global_options(*app, options);
  app->footer(kFooter);
  for (const Command& command : commands()) {
    CLI::App* verb = app->add_subcommand(command.name, command.summary)->group(heading(command.group));
    verb->fallthrough();  // global options after the verb
    verb->set_help_flag("-h,--help", "Print this help");
    Command::Run run = command.add_options(*verb);
    verb->callback([run, &command, &choice] { choice = {&command, run}; });
    verb->footer("Options of every verb (--json, --progress, --color, --quiet): ckpt --help");
  }
  return app;
}

}  // namespace ckpt::cli
