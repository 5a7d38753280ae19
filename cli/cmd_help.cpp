// `ckpt help [VERB]` and `ckpt version`: what --help and --version print, for those who ask with a verb.
#include <fmt/format.h>

#include "cli/app.h"
#include "cli/suggest.h"

namespace ckpt::cli {

Command::Run add_help(VerbOptions& app) {
  auto verb = std::make_shared<std::string>();
  app.add_option("verb", *verb, "Its options; without one the verbs").type_name("VERB");
  return [verb](Context& context) -> Result<void> {
    const std::string text = help_text(*verb);
    if (text.empty()) {
      std::vector<std::string> names;
      for (const Command& command : commands()) names.emplace_back(command.name);
      const std::string near = nearest(*verb, names);
      return Error(Code::kUsage, "help", fmt::format("'{}' is not a verb", *verb))
          .with_hint(near.empty() ? "ckpt help lists the verbs" : "did you mean " + near + "?");
    }
    context.out.data(text);
    return {};
  };
}

Command::Run add_version(VerbOptions&) {
  return [](Context& context) -> Result<void> {
    context.out.data(version_text(context.out.json()));
    return {};
  };
}

}  // namespace ckpt::cli
