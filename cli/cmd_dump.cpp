#include "cli/dump_flags.h"
#include "cli/dump_to_url.h"
#include "cli/trace_flag.h"

namespace ckpt::cli {

namespace {

struct DumpVerbFlags : DumpFlags {
  bool leave_running = false, leave_stopped = false;
};

}  // namespace

Command::Run add_dump(VerbOptions& app) {
  auto flags = std::make_shared<DumpVerbFlags>();
  add_dump_flags(app, *flags);
  VerbOption running =
      app.add_flag("-R,--leave-running,--non-stop", flags->leave_running, "The process goes on afterwards");
  const VerbOption stopped =
      app.add_flag("-s,--leave-stopped", flags->leave_stopped, "The process stays, stopped as by SIGSTOP");
  running.excludes(stopped);
  app.add_flag("--rehearse", flags->options.rehearse,
               "Make the processes again where nobody notices first, and let them be where they would not be the same");
  app.add_flag("-n,--dry-run", flags->dry_run, "Say what would be written, with sizes");
  return [flags](Context& context) -> Result<void> {
    using After = engine::DumpOptions::After;
    CKPT_TRY(resolve_parent(*flags, context));
    CKPT_TRY(finish_dump_flags(*flags));
    flags->options.after = flags->leave_running   ? After::kLeaveRunning
                           : flags->leave_stopped ? After::kLeaveStopped
                                                  : After::kEnd;
    const char* verb = flags->leave_running ? "dump -R" : flags->leave_stopped ? "dump -s" : "dump";
    auto where = [&](const std::function<Result<void>()>& work) { return dump_where_it_is(*flags, context, work); };
    return dump_alone_or_together(*flags, context, verb, where, [&]() -> Result<void> {
      CKPT_TRY_ASSIGN(const auto elsewhere, ImageUpload::prepare(*flags, context));
      if (flags->dry_run) return print_dump_estimate(context, "dump", *flags);
      auto work = [&] { return engine::dump(flags->options, context.progress, context.cancel); };
      auto taken = traced(flags->trace, "dump", context, work);
      if (elsewhere) elsewhere->finish(taken);
      CKPT_TRY_ASSIGN(const engine::DumpReport report, std::move(taken));
      print_dump_report(context, "dump", *flags, report);
      return {};
    });
  };
}

}  // namespace ckpt::cli
