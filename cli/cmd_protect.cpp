// protect: parity of checkpoints that lie on the nodes' own disks or in their memory.
#include <fmt/format.h>

#include <map>
#include <set>

#include "cli/model_view.h"
#include "cli/parity_job.h"
#include "cli/plural.h"
#include "lib/base/clock.h"
#include "lib/base/text.h"

namespace ckpt::cli {

namespace {

using parity::SetRecord;

struct ProtectFlags {
  ParityFlags job;
  std::string scheme = "xor", group = "node";
  unsigned parity = 0;  ///< 0: what is usual for the scheme
  unsigned set_size = 16;
};

/// What goes from where to where; nodes by name, the rest by rank.
struct Traffic {
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t> sends;  ///< step, from, to
  std::map<std::pair<std::string, std::string>, uint64_t> links;
  std::map<uint32_t, std::string> nodes;  ///< of a rank
  uint64_t between = 0;                   ///< nodes
};

Result<Traffic> traffic_of(const std::vector<SetRecord>& sets) {
  Traffic out;
  for (const SetRecord& set : sets) {
    CKPT_TRY_ASSIGN(const parity::ErasureCode code, set.code());
    for (const parity::MemberRecord& member : set.members) out.nodes[member.rank] = member.place.node;
    for (const parity::Transfer& transfer : transfers(encoding_schedule(code, set.nodes()))) {
      const auto &from = set.members[transfer.from], &to = set.members[transfer.to];
      out.sends[{transfer.step, from.rank, to.rank}] += set.chunk;
      out.links[{from.place.node, to.place.node}] += set.chunk;
      if (from.place.node != to.place.node) out.between += set.chunk;
    }
  }
  return out;
}

void write_schedule(JsonWriter& out, const Traffic& traffic) {
  out.open("sends", '[');
  for (const auto& [send, bytes] : traffic.sends) {
    const auto& [step, from, to] = send;
    out.row_of("step", step, "from", from, "to", to, "from_node", traffic.nodes.at(from), "to_node",
               traffic.nodes.at(to), "bytes", bytes);
  }
  out.close();
  out.open("links", '[');
  for (const auto& [link, bytes] : traffic.links)
    out.row_of("from_node", link.first, "to_node", link.second, "bytes", bytes);
  out.close();
}

void print_json(Console& console, const ProtectFlags& flags, const parity::Protection& done, const Traffic& traffic,
                uint64_t us) {
  JsonWriter out;
  out.open('{');
  const SetRecord& first = done.sets.front();
  out.members("schema", "ckpt.protect/1", "dry_run", flags.job.dry_run, "scheme", flags.scheme, "parity", first.parity,
              "epoch", first.epoch, "ranks", first.world, "data_bytes", done.data_bytes, "parity_bytes",
              done.parity_bytes, "bytes_between_nodes", traffic.between, "duration_us", us);
  out.open("sets", '[');
  for (const SetRecord& set : done.sets) {
    out.open('{');
    std::vector<uint32_t> ranks;
    for (const parity::MemberRecord& member : set.members) ranks.push_back(member.rank);
    out.members("ranks", ranks, "nodes", set.nodes(), "chunk_bytes", set.chunk, "block_bytes", set.block);
    out.close();
  }
  out.close();
  if (flags.job.dry_run) write_schedule(out, traffic);
  console.data(std::move(out).finish());
}

void print_plan(Console& console, const parity::Protection& done, const Traffic& traffic) {
  for (const SetRecord& set : done.sets) {
    std::vector<std::string> members;
    for (const parity::MemberRecord& member : set.members)
      members.push_back(fmt::format("{} on {}", member.rank, escape_for_terminal(member.place.node)));
    console.data(fmt::format("set of ranks {}\n", fmt::join(members, ", ")));
  }
  for (const auto& [link, bytes] : traffic.links) {
    const std::string from = escape_for_terminal(link.first), to = escape_for_terminal(link.second);
    console.data(link.first == link.second ? fmt::format("inside {}: {}\n", from, human_bytes(bytes))
                                           : fmt::format("{} to {}: {}\n", from, to, human_bytes(bytes)));
  }
  console.data(
      fmt::format("would write {} of parity for {}\n", human_bytes(done.parity_bytes), human_bytes(done.data_bytes)));
}

Result<void> run_protect(Context& context, const ProtectFlags& flags) {
  parity::ProtectOptions options;
  options.dry_run = flags.job.dry_run;
  options.rules.scheme = *parity::scheme_from_name(flags.scheme);
  options.rules.parity = flags.parity != 0 ? flags.parity : options.rules.scheme == parity::Scheme::kRs ? 2 : 1;
  options.rules.group = flags.group == "rack" ? parity::FailureGroup::kRack : parity::FailureGroup::kNode;
  options.rules.set_size = flags.set_size;
  CKPT_TRY_ASSIGN(ParityJob job, ParityJob::open(context, flags.job));
  Stopwatch watch;  // MPI has started
  const auto protection =
      job.run<parity::Protection>([&](parity::Rank& rank) { return parity::protect(rank, options); });
  if (!job.speaks()) return job.end_silently(protection);
  if (!protection) return protection.error();
  const parity::Protection& done = *protection;
  CKPT_TRY_ASSIGN(const Traffic traffic, traffic_of(done.sets));
  const uint64_t us = watch.elapsed_us();
  if (context.out.json())
    print_json(context.out, flags, done, traffic, us);
  else if (flags.job.dry_run)
    print_plan(context.out, done, traffic);
  if (flags.job.dry_run) return {};
  const uint64_t rate = us == 0 ? 0 : static_cast<uint64_t>(static_cast<double>(done.data_bytes) * 1e6 / us);
  context.out.info(fmt::format("protected {} of {} by {} in {}: {} of parity, {} between nodes; {} ({}/s)",
                               human_bytes(done.data_bytes), counted(done.sets.front().world, "rank"), flags.scheme,
                               counted(done.sets.size(), "set"), human_bytes(done.parity_bytes),
                               human_bytes(traffic.between), human_us(us), human_bytes(rate)));
  return {};
}

}  // namespace

Command::Run add_protect(VerbOptions& app) {
  auto state = std::make_shared<ProtectFlags>();
  add_parity_flags(app, state->job, "The folder of each rank, in their order; under MPI this rank's",
                   "Say what would be sent and written; with --json the whole schedule");
  app.add_option("--scheme", state->scheme, "partner: copies; xor: one lost node is survived; rs: --parity of them")
      .type_name("SCHEME")
      .one_of({"partner", "xor", "rs"})
      .shows_default();
  app.add_option("--parity", state->parity, "How many lost members a set survives: of rs 2, else 1, if not given")
      .type_name("K")
      .in_range(1, 128);
  app.add_option("--failure-group", state->group, "What fails together: node or rack")
      .type_name("GROUP")
      .one_of({"node", "rack"})
      .shows_default();
  app.add_option("--set-size", state->set_size, "Members of a set at most")
      .type_name("N")
      .in_range(2, 255)
      .shows_default();
  add_max_memory(app, state->job.max_memory);
  return [state](Context& context) { return run_protect(context, *state); };
}

}  // namespace ckpt::cli
