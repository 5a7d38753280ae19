#include "cli/app.h"

#include <CLI/CLI.hpp>

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
    case Group::kTool: return "Help and shell";
  }
  return "";
}

constexpr const char* kFooter =
    R"(Options go before or after the verb. ckpt help VERB says more; exit codes and configuration: man ckpt

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

/// The values of a CLI::IsMember check, which describes itself as "{a,b,c}".
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

std::vector<OptionSummary> describe_options(const CLI::App& app) {
  std::vector<OptionSummary> out;
  for (const CLI::Option* option : app.get_options(
           [](const CLI::Option* o) { return o->nonpositional() && !o->get_group().empty(); })) {  // no group: hidden
    OptionSummary& summary = out.emplace_back();
    for (const std::string& name : option->get_snames()) summary.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) summary.names.push_back("--" + name);
    summary.summary = option->get_description();
    summary.takes_value = option->get_expected_max() != 0;
    if (summary.takes_value) summary.values = values_of(*option);
    summary.is_list = option->get_delimiter() == ',';
    summary.is_pid = option->check_lname("pid");
  }
  return out;
}

/// Of `help` all verbs, of the others what its first argument's check allows.
std::vector<std::string> first_argument(const CLI::App& verb) {
  if (verb.get_name() == "help") {
    std::vector<std::string> out;
    for (const Command& command : commands()) out.emplace_back(command.name);
    return out;
  }
  for (const CLI::Option* option : verb.get_options([](const CLI::Option* o) { return o->get_positional(); }))
    return values_of(*option);
  return {};
}

bool takes_key(const CLI::App& verb) {
  return !verb.get_options([](const CLI::Option* o) { return o->get_name(true) == "key"; }).empty();
}

}  // namespace

CommandLine describe_command_line() {
  GlobalOptions options;
  Choice choice;
  std::unique_ptr<CLI::App> app = make_app(options, choice);
  CommandLine out{describe_options(*app), {}};
  for (const CLI::App* verb : app->get_subcommands([](const CLI::App*) { return true; })) {
    out.verbs.push_back({verb->get_name(), verb->get_description(), describe_options(*verb), first_argument(*verb),
                         takes_key(*verb)});
  }
  return out;
}

std::string help_text(const std::string& verb) {
  GlobalOptions options;
  Choice choice;
  std::unique_ptr<CLI::App> app = make_app(options, choice);
  if (verb.empty()) return app->help();
  for (const CLI::App* found : app->get_subcommands([&](const CLI::App* a) { return a->get_name() == verb; }))
    return found->help(app->get_name());
  return "";
}

std::unique_ptr<CLI::App> make_app(GlobalOptions& options, Choice& choice) {
  auto app = std::make_unique<CLI::App>("ckpt: checkpoints of live processes and of models.\n", "ckpt");
  app->formatter(std::make_shared<HelpFormatter>());
  app->set_version_flag("-V,--version", [&options] {
    std::string text = version_text(options.json);
    text.pop_back();  // the parser adds a line end
    return text;
  }, "Print the version, and what this build has");
  app->set_help_flag("-h,--help", "Print this help; ckpt VERB --help: that of a verb");
  app->require_subcommand(1);
  app->get_formatter()->label("OPTIONS", "OPTION...");
  add_global_options(*app, options);
  app->footer(kFooter);
  for (const Command& command : commands()) {
    CLI::App* verb = app->add_subcommand(command.name, command.summary)->group(heading(command.group));
    verb->fallthrough();  // global options after the verb
    verb->set_help_flag("-h,--help", "Print this help");
    std::vector<VerbOptions::Preparation> first;
    VerbOptions table(*verb, first);
    Command::Run verb_itself = command.add_options(table);
    const Command::Run run = [first, verb_itself](Context& context) -> Result<void> {
      for (const VerbOptions::Preparation& prepare : first) CKPT_TRY(prepare(context));
      return verb_itself(context);
    };
    verb->callback([run, &command, &choice] { choice = {&command, run}; });
    verb->footer("Options of every verb (--json, --progress, --color, --quiet): ckpt --help");
  }
  return app;
}

}  // namespace ckpt::cli
