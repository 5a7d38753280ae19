// ckpt agent DIR: the memory of a node's trainers, until it is stopped.
#include <fmt/format.h>

#include "cli/command.h"
#include "lib/base/text.h"
#include "lib/flash/agent.h"
#include "lib/flash/ask.h"

namespace ckpt::cli {

namespace {

struct AgentFlags {
  std::string directory;
  flash::AgentOptions options;
  uint64_t grace = 30, linger = 0, agree = 30, lost_after = 30;
  bool no_persist_on_death = false, no_verify = false, status = false;
};

Result<void> run_agent_verb(Context& context, AgentFlags& flags) {
  if (flags.status) {
    CKPT_TRY_ASSIGN(const std::string text, flash::agent_status(flags.directory, flags.options.socket));
    context.out.data(text);
    return {};
  }
  flash::AgentOptions& options = flags.options;
  options.directory = flags.directory;
  options.grace_ms = flags.grace * 1000;
  options.agree_ms = flags.agree * 1000;
  options.lost_ms = flags.lost_after * 1000;
  options.linger_ms = flags.linger * 1000;
  options.on_death = !flags.no_persist_on_death;
  options.verify = !flags.no_verify;
  auto tell = [&](const std::string& line) { context.out.info(escape_for_terminal(line)); };
  auto ready = [&] { tell("serves " + options.directory.string()); };
  CKPT_TRY_ASSIGN(const flash::AgentEnd end, flash::run_agent(options, context.cancel, tell, ready));
  if (end.saved) return {};
  return fail(Code::kBusy, flags.directory, "the newest step in memory was not written to storage in time");
}

}  // namespace

Command::Run add_agent(VerbOptions& app) {
  auto state = std::make_shared<AgentFlags>();
  flash::AgentOptions& options = state->options;
  app.add_option("DIR", state->directory, "The folder of checkpoints: it names the agent").required();
  app.add_option("--to", options.format, "The format that checkpoints are written in")
      .one_of({"dcp", "torch_dist", "torch", "safetensors"})
      .shows_default();
  app.add_option("--every", options.every, "Persist steps that are a multiple of it").type_name("STEPS").positive();
  app.add_option("--keep-last", options.keep, "Keep so many checkpoints; without it all").positive();
  app.add_option("--rate", options.rate, "Bytes a second at most that persisting writes").as_size();
  app.add_option("--buffers", options.buffers, "Of each rank; without it two where memory allows").in_range(1, 2);
  app.add_option("--agree", state->agree, "How long the agents of a job's other nodes may take to join a checkpoint")
      .in_range(1, 86'400)
      .type_name("SECONDS");
  app.add_option("--lost-after", state->lost_after,
                 "How long one of them may give no sign of life while it writes (30)")
      .in_range(1, 86'400)
      .type_name("SECONDS");
  app.add_option("--grace", state->grace, "After SIGTERM, for the newest step to be written")
      .type_name("SECONDS")
      .shows_default();
  app.add_option("--linger", state->linger, "End so long after the last trainer did").type_name("SECONDS").positive();
  app.add_option("--socket", options.socket, "The socket's path; without it one of DIR's own").type_name("PATH");
  app.add_flag("--no-persist-on-death", state->no_persist_on_death, "A trainer that dies is no reason to persist");
  app.add_flag("--no-verify", state->no_verify, "Do not read again and compare what was written");
  app.add_flag("--status", state->status, "Print what the agent of DIR holds, as JSON, and end");
  return [state](Context& context) { return run_agent_verb(context, *state); };
}

}  // namespace ckpt::cli
