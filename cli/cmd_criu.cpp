// criu: its command line and its RPC, behind the verb or by the name of a link (cli/criu/).
#include "cli/command.h"
#include "cli/criu/front.h"

namespace ckpt::cli {

Command::Run add_criu(VerbOptions& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  app.add_option("WORD", *words, "What would be behind criu: dump, pre-dump, restore, check, dedup, swrk, and options")
      .required();
  // Words behind the verb never come here (main.cpp takes them as they are, options and all), but for those behind an
  // option of ckpt's own.
  return [words](Context& context) -> Result<void> {
    context.exit_status = criu::run(*words, context.cancel);
    return {};
  };
}

}  // namespace ckpt::cli
