// ckpt persist DIR: the agent of DIR writes its newest step to storage now.
#include <fmt/format.h>

#include "cli/command.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/flash/ask.h"

namespace ckpt::cli {

namespace {

struct PersistFlags {
  std::string directory, socket, to;
  uint64_t step = UINT64_MAX;
  bool no_wait = false;
};

Result<void> run_persist(Context& context, const PersistFlags& flags) {
  CKPT_TRY_ASSIGN(const flash::Persisted done,
                  flash::ask_persist(flags.directory, flags.socket, flags.step, flags.to, !flags.no_wait));
  if (context.out.json()) {
    JsonWriter out;
    out.open('{');
    out.members("schema", "ckpt.persist/1", "step", done.step, "durable", done.durable, "path", done.path, "bytes",
                done.bytes, "write_us", done.write_us, "verify_us", done.verify_us, "sync_us", done.sync_us);
    context.out.data(std::move(out).finish());
  }
  if (!done.durable)
    context.out.info(fmt::format("step {} will be written", done.step));
  else if (done.path.empty())
    context.out.info(fmt::format("step {} is on disk already", done.step));
  else
    context.out.info(
        fmt::format("wrote step {} to {} ({})", done.step, escape_for_terminal(done.path), human_bytes(done.bytes)));
  return {};
}

}  // namespace

Command::Run add_persist(VerbOptions& app) {
  auto state = std::make_shared<PersistFlags>();
  app.add_option("DIR", state->directory, "The folder of checkpoints whose agent is asked").required();
  app.add_option("--step", state->step, "This step; without it the newest that every rank has").type_name("N");
  app.add_option("--into", state->to, "Another folder of checkpoints to write it to").type_name("FOLDER");
  app.add_option("--socket", state->socket, "The agent's socket; without it the one of DIR").type_name("PATH");
  app.add_flag("--no-wait", state->no_wait, "Return once the agent has been told");
  return [state](Context& context) { return run_persist(context, *state); };
}

}  // namespace ckpt::cli
