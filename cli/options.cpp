#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <optional>

#include "cli/app.h"
#include "cli/command.h"
#include "cli/config.h"
#include "cli/guard.h"
#include "cli/progress.h"
#include "cli/suggest.h"
#include "lib/remote/url.h"

namespace ckpt::cli {

namespace {

/// Options of criu's dump, pre-dump and restore (criu 4.1, config.c) that a user may bring along and ckpt does not
/// have: refused by name, because leaving one out silently would make another image than the one asked for. With what
/// to do instead, where there is something.
struct CriuOption {
  const char* name;
  const char* hint = "";
};
constexpr const char* kIsAlways = "leave it out: ckpt always does that";
constexpr const char* kPeerFlag = "ckpt's option for it is --ext-unix-sk, without a list";
constexpr std::array<CriuOption, 73> kCriuOptions = {{
    {"--action-script"},
    {"--allow-uprobes"},
    {"--auto-dedup"},
    {"--cgroup-dump-controller"},
    {"--cgroup-props"},
    {"--cgroup-props-file"},
    {"--cgroup-root"},
    {"--cgroup-yard"},
    {"--close"},
    {"-c"},
    {"--compress"},
    {"--config"},
    {"--cpu-cap"},
    {"--deprecated"},
    {"--empty-ns"},
    {"--enable-external-masters"},
    {"--enable-external-sharing"},
    {"--enable-fs"},
    {"--evasive-devices"},
    {"--exec-cmd"},
    {"--ext-mount-map"},
    {"-M"},
    {"--ext-unix-sk", kPeerFlag},
    {"-x", kPeerFlag},
    {"--external"},
    {"--file-locks", kIsAlways},
    {"-l", kIsAlways},
    {"--file-validation"},
    {"--force-irmap"},
    {"--freeze-cgroup"},
    {"--ghost-fiemap"},
    {"--ghost-limit"},
    {"--img-parent"},
    {"--inherit-fd"},
    {"--irmap-scan-path"},
    {"--join-ns"},
    {"-J"},
    {"--lazy-pages", "ckpt restore --lazy"},
    {"--leave-stopped"},
    {"-s"},
    {"--libdir"},
    {"-L"},
    {"--link-remap"},
    {"--lsm-mount-context"},
    {"--lsm-profile"},
    {"--manage-cgroups"},
    {"--mntns-compat-mode"},
    {"--network-lock"},
    {"--ns-last-pid"},
    {"--page-server"},
    {"--address"},
    {"--port"},
    {"--pre-dump-mode"},
    {"--restore-sibling"},
    {"-S"},
    {"--root"},
    {"-r"},
    {"--service-address"},
    {"--skip-file-rwx-check"},
    {"--skip-in-flight"},
    {"--skip-mnt"},
    {"--status-fd"},
    {"--stream"},
    {"--tcp-close"},
    {"--tcp-established"},
    {"--timeout"},
    {"--tls"},
    {"--track-mem"},
    {"--unprivileged"},
    {"--veth-pair", "restore --veth takes it"},
    {"--weak-sysctls"},
    {"-W", "name the folder of the image whole"},
    {"--work-dir", "name the folder of the image whole"},
}};

/// Null where criu has no such option, or the verb is none of criu's. A short one may have its value behind it
/// (-W/tmp).
const CriuOption* find_criu_option(const std::string& verb, const std::string& word) {
  if (verb != "dump" && verb != "pre-dump" && verb != "restore") return nullptr;
  const std::string name = word.size() > 2 && word[1] != '-' ? word.substr(0, 2) : word.substr(0, word.find('='));
  auto found = std::find_if(kCriuOptions.begin(), kCriuOptions.end(),
                            [&](const CriuOption& option) { return name == option.name; });
  return found != kCriuOptions.end() ? found : nullptr;
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return !o->get_group().empty(); })) {
    for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
  }
  return out;
}

/// What pos-cli's and criu's users type, whose verbs are options there.
struct Elsewhere {
  const char* word;
  const char* hint;
};
constexpr std::array<Elsewhere, 11> kElsewhere = {{
    {"--clean", "ckpt rm DIR removes an image"},
    {"--start",
     "nothing has to be started; ckpt run -- PROGRAM is for programs whose GPU memory is to be saved while they run"},
    {"--target", "dump has --gpu auto, off or only; single kinds of resources cannot be chosen"},
    {"--skip-target", "dump has --gpu auto, off or only; single kinds of resources cannot be chosen"},
    {"--option", "copy-on-write is what pre-dump does; recomputing is dump --delta recompute"},
    {"--pre-restore", "ckpt restore --lazy runs the process before its memory has been read"},
    {"--migrate", "ckpt migrate -p PID --to HOST, with --new-pidns where its numbers are taken there"},
    {"--trace-resource", "--trace FILE writes a timeline of ckpt itself"},
    {"--dip", "ckpt migrate -p PID --to HOST"},
    {"--every", "ckpt watch -p PID -f DIR --every TIME takes images while the process goes on, each of what differs"},
    {"--preserve", "dump -R leaves the process running"},
}};

/// What is likely to have been meant by a word that is not known; empty: nobody can say.
std::string hint_for(CLI::App& app, const CLI::App* verb, const std::string& word) {
  const bool is_option = word.size() > 1 && word[0] == '-';
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> verbs;
  for (const Command& command : commands()) verbs.emplace_back(command.name);
  if (!is_option) {
    const std::string near = verb == nullptr ? nearest(word, verbs) : "";
    return near.empty() ? "" : fmt::format("did you mean {}?", near);
  }
  const std::string bare =
      name.substr(name.find_first_not_of('-') == std::string::npos ? 0 : name.find_first_not_of('-'));
  if (std::find(verbs.begin(), verbs.end(), bare) != verbs.end())
    return fmt::format("a verb has no dashes: ckpt {}", bare);
  auto other = std::find_if(kElsewhere.begin(), kElsewhere.end(), [&](const Elsewhere& e) { return name == e.word; });
  if (other != kElsewhere.end()) return other->hint;
  std::vector<std::string> names = long_names(app);
  if (verb != nullptr) {
    for (std::string& own : long_names(*verb)) names.push_back(std::move(own));
  }
  // With one dash, which the parser takes for letters: -json.
  const std::string near = nearest(name.starts_with("--") ? name : "-" + name, names);
  if (!near.empty() && name.size() > 2) return fmt::format("did you mean {}?", near);
  if (verb != nullptr) return "";
  for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::vector<std::string> own = long_names(*one);
    if (std::find(own.begin(), own.end(), name) != own.end())
      return fmt::format("it goes with a verb: ckpt {} {}", one->get_name(), name);
  }
  return "";
}

/// The parser's words on a value, in those of this program.
std::string plain_words(const std::string& text) {
  auto between = [&](std::string_view first,
                     std::string_view second) -> std::optional<std::pair<std::string, std::string>> {
    const size_t at = text.find(second, first.size());
    if (!text.starts_with(first) || at == std::string::npos) return std::nullopt;
    return std::pair(text.substr(first.size(), at - first.size()), text.substr(at + second.size()));
  };
  if (auto number = between("Could not convert: ", " = ")) {
    const auto& [name, value] = *number;
    const bool is_whole =
        !value.empty() && value.find_first_not_of("0123456789", value[0] == '-' ? 1 : 0) == std::string::npos;
    if (is_whole && value != "-") return fmt::format("{}: {} is beyond what it can be", name, value);
    const bool is_fraction = !value.empty() && value.find_first_not_of("0123456789.") == std::string::npos;
    return fmt::format("{} wants a {}number, not '{}'", name, is_fraction ? "whole " : "", value);
  }
  if (auto choice = between("", " not in {"); choice && choice->second.ends_with('}')) {
    const size_t colon = choice->first.find(": ");
    const std::string name = colon == std::string::npos ? "" : choice->first.substr(0, colon + 2);
    const std::string value = colon == std::string::npos ? choice->first : choice->first.substr(colon + 2);
    const std::vector<std::string> values =
        CLI::detail::split(choice->second.substr(0, choice->second.size() - 1), ',');
    const std::string near = nearest(value, values);
    return fmt::format("{}'{}' is none of {}{}", name, value, fmt::join(values, ", "),
                       near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
  if (auto range = between("", ": Value "); range && range->second.find(" not in range ") != std::string::npos) {
    std::string rest = range->second;
    return range->first + ": " + rest.replace(rest.find(" not in range "), 14, " is not in the range ");
  }
  if (auto missing = between("", ": 1 required "); missing && missing->second.ends_with(" missing"))
    return missing->first + " wants a value";
  return text;
}

/// What the parser refused, in the words of this program: unknown words first, since they are the likelier mistake.
Error usage_error(CLI::App& app, const CLI::ParseError& e) {
  std::vector<CLI::App*> verbs = app.get_subcommands();
  const std::string verb = verbs.empty() ? "" : verbs.front()->get_name();
  const std::string hint =
      verb.empty() ? "ckpt --help lists the verbs" : fmt::format("ckpt {} --help lists what it takes", verb);
  for (const std::string& word : app.remaining(true)) {
    std::string what = fmt::format("'{}' is not a verb", word);
    if (word.size() > 1 && word[0] == '-') {
      if (const CriuOption* criu = find_criu_option(verb, word)) {
        return Error(Code::kUsage, verb, fmt::format("criu's option '{}' is not supported", word))
            .with_hint(*criu->hint != 0 ? criu->hint : hint);
      }
      what = fmt::format("unknown option '{}'", word);
    } else if (!verb.empty()) {
      what = fmt::format("'{}' is one argument too many", word);
    }
    const std::string meant = hint_for(app, verbs.empty() ? nullptr : verbs.front(), word);
    return Error(Code::kUsage, verb, what).with_hint(meant.empty() ? hint : meant + "; " + hint);
  }
  if (verb.empty() && dynamic_cast<const CLI::RequiredError*>(&e) != nullptr) {
    return Error(Code::kUsage, "", "a verb is required").with_hint(hint);
  }
  return Error(Code::kUsage, verb, plain_words(e.what())).with_hint(hint);
}

/// `scheme://`, with or without something behind it.
bool looks_like_url(const std::string& word) {
  const size_t end = word.find("://");
  if (end == std::string::npos || end == 0 || std::isalpha(static_cast<unsigned char>(word[0])) == 0) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<ptrdiff_t>(end),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '+' || c == '.' || c == '-'; });
}

/// URLs are read where an option's value is a PATH|URL; nothing is written to one. Every path comes through here, and
/// no path begins like this. What follows `run --` is the program's own.
Result<void> refuse_urls(const CLI::App& app) {
  for (const CLI::App* verb : app.get_subcommands()) {
    for (const CLI::Option* option : verb->get_options()) {
      if (option->get_name(true) == "COMMAND") continue;
      std::vector<std::string> words = option->results();
      words.push_back(option->get_default_str());
      for (const std::string& word : words) {
        if (!looks_like_url(word)) continue;
        const bool reads = option->get_type_name().find("URL") != std::string::npos;
        if (reads && remote::is_url(word)) continue;
        return Error(Code::kUnsupported, word,
                     reads ? "is a URL of a kind that is not read: s3://, gs://, http:// and https:// are"
                           : "is a URL: what is read or written here is on this host")
            .with_hint("mount it, or copy it to a folder first");
      }
    }
  }
  return {};
}

int end_with(const Error& error, const GlobalOptions& options) {
  report_error(error, options);
  return exit_code(error.code);
}

/// The program's exit code; an error has been reported.
int run_verb(const Choice& choice, const GlobalOptions& options, const Cancel& cancel) {
  Progress progress(options.quiet ? Progress::Form::kSilent : Progress::form_of(options.progress, stderr),
                    !options.quiet, stderr);
  Console console(options, &progress);
  Context context{console, progress, cancel};
  Result<void> result = choice.run(context);
  progress.finish();
  Result<void> printed = console.finish();
  if (result) result = printed;
  return result ? context.exit_status : end_with(result.error(), options);
}

}  // namespace

int run_command_line(int argc, char** argv, GlobalOptions& options, const Cancel& cancel) {
  // Known before parsing, so that a usage error, too, has the form that was asked for.
  options.json = std::any_of(argv, argv + argc, [](const char* word) { return std::strcmp(word, "--json") == 0; });
  Choice choice;
  std::unique_ptr<CLI::App> app = make_app(options, choice);
  auto origins = apply_defaults(*app);
  if (!origins) return end_with(origins.error(), options);
  try {
    app->parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app->exit(e);
  } catch (const CLI::ParseError& e) {
    return end_with(usage_error(*app, e), options);
  }
  for (const CLI::App* verb : app->get_subcommands()) {
    if (Result<void> fit = check_exclusions(*verb, *origins); !fit) return end_with(fit.error(), options);
  }
  if (Result<void> local = refuse_urls(*app); !local) return end_with(local.error(), options);
  auto work = [&] { return run_verb(choice, options, cancel); };
  return choice.command->guarded ? run_guarded(work, cancel) : work();
}

}  // namespace ckpt::cli
