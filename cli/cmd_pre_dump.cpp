#include "cli/dump_flags.h"
#include "cli/dump_to_url.h"
#include "cli/trace_flag.h"

namespace ckpt::cli {

Command::Run add_pre_dump(VerbOptions& app) {
  auto flags = std::make_shared<DumpFlags>();
  add_dump_flags(app, *flags);
  app.add_flag("-R,--leave-running,--non-stop", flags->non_stop, "Accepted: the process goes on in any case");
  app.add_flag("-n,--dry-run", flags->dry_run, "Say what would be written, with sizes");
  return [flags](Context& context) -> Result<void> {
    CKPT_TRY(resolve_parent(*flags, context));
    CKPT_TRY(finish_dump_flags(*flags));
    auto where = [&](const std::function<Result<void>()>& work) {
      return where_it_is(flags->options.pid, context, work);
    };
    return dump_alone_or_together(*flags, context, "pre-dump", where, [&]() -> Result<void> {
      CKPT_TRY_ASSIGN(const auto elsewhere, ImageUpload::prepare(*flags, context));
      if (flags->dry_run) return print_dump_estimate(context, "pre-dump", *flags);
      auto work = [&] { return engine::pre_dump(flags->options, context.progress, context.cancel); };
      auto taken = traced(flags->trace, "pre-dump", context, work);
      if (elsewhere) elsewhere->finish(taken);
      CKPT_TRY_ASSIGN(const engine::DumpReport report, std::move(taken));
      print_dump_report(context, "pre-dump", *flags, report);
      return {};
    });
  };
}

}  // namespace ckpt::cli
