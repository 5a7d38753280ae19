#include "cli/parity_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/model_view.h"
#include "cli/plural.h"
#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/text.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kMostTopology = 16 << 20;

std::string ranks_text(const std::vector<uint32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + fmt::format("{}", fmt::join(ranks, ", "));
}

}  // namespace

void add_parity_flags(VerbOptions& app, ParityFlags& flags) {
  app.add_option("--topology", flags.topology, "Which rank runs on which node: lines of RANK NODE [RACK]")
      .type_name("FILE");
  add_max_memory(app, flags.max_memory);
}

Result<ParityJob> ParityJob::open(Context& context, const ParityFlags& flags) {
  ParityJob out(context);
  out.folders_ = flags.folders;
  if (flags.topology.empty()) {
    // Nothing else is known: each folder is on a node of its own.
    for (size_t i = 0; i < flags.folders.size(); ++i) out.places_.push_back({fmt::format("node{}", i), ""});
  } else {
    CKPT_TRY_ASSIGN(const std::string text, io::read_file(flags.topology, kMostTopology));
    CKPT_TRY_ASSIGN(out.places_, parity::parse_topology(text, flags.topology));
    if (out.places_.size() != flags.folders.size())
      return fail(Code::kUsage, flags.topology,
                  fmt::format("is of {}, and {} were given", counted(out.places_.size(), "rank"),
                              counted(flags.folders.size(), "folder")));
  }
  std::vector<std::filesystem::path> known;
  for (const std::string& folder : flags.folders) {
    std::error_code ec;
    known.push_back(std::filesystem::weakly_canonical(folder, ec));
    if (std::count(known.begin(), known.end(), known.back()) > 1)
      return fail(Code::kUsage, folder, "is named twice: each rank has a folder of its own");
  }
  out.memory_ = flags.max_memory / flags.folders.size();
  return out;
}

Result<void> ParityJob::run_ranks(const std::function<Result<void>(parity::Rank&)>& work) {
  auto results = parity::run_locally(static_cast<uint32_t>(folders_.size()), [&](parity::Transport& transport) {
    parity::Rank rank{transport, folders_[transport.rank()], places_[transport.rank()],
                      memory_,   context_.progress,          context_.cancel};
    return work(rank);
  });
  if (!results) return results.error();
  CKPT_TRY(results->front());
  for (Result<void>& one : *results) CKPT_TRY(one);
  return {};
}

std::vector<std::string> health_lines(const parity::Health& health) {
  std::vector<std::string> out;
  for (const parity::SetHealth& set : health.sets) {
    if (set.whole) continue;
    for (const parity::MemberHealth& member : set.members) {
      if (member.data == parity::State::kWhole && member.parity == parity::State::kWhole) continue;
      out.push_back(fmt::format("rank {} on {}: data {}, parity {}: {}", member.rank, escape_for_terminal(member.node),
                                state_name(member.data), state_name(member.parity),
                                escape_for_terminal(member.finding)));
    }
    if (!set.repairable)
      out.push_back("more is lost than can be brought back");
    else if (!set.from.empty())
      out.push_back("it can be brought back from " + ranks_text(set.from) + ": ckpt rebuild");
  }
  if (!health.unknown.empty()) out.push_back("nothing is left of the sets of " + ranks_text(health.unknown));
  return out;
}

void write_health(JsonWriter& out, const parity::Health& health) {
  out.members("whole", health.whole(), "repairable", health.repairable(), "epoch", health.epoch, "ranks", health.world,
              "unknown_ranks", health.unknown);
  out.open("sets", '[');
  for (const parity::SetHealth& set : health.sets) {
    out.open('{');
    out.members("scheme", scheme_name(set.set.scheme), "parity", set.set.parity, "whole", set.whole, "repairable",
                set.repairable, "from", set.from);
    out.open("members", '[');
    for (const parity::MemberHealth& member : set.members) {
      out.row_of("rank", member.rank, "node", member.node, "folder", member.folder, "data", state_name(member.data),
                 "parity", state_name(member.parity), "finding", member.finding);
    }
    out.close();
    out.close();
  }
  out.close();
}

Result<void> verify_parity(Context& context, const ParityFlags& flags) {
  Stopwatch watch;
  CKPT_TRY_ASSIGN(ParityJob job, ParityJob::open(context, flags));
  CKPT_TRY_ASSIGN(const parity::Health health, job.run<parity::Health>(parity::check_parity));
  if (context.out.json()) {
    JsonWriter out;
    out.open('{');
    out.members("schema", "ckpt.verify/1", "kind", "parity", "path", flags.folders.front(), "ok", health.whole(),
                "duration_us", watch.elapsed_us());
    write_health(out, health);
    context.out.data(std::move(out).finish());
  } else {
    for (const std::string& line : health_lines(health)) context.out.data(line + "\n");
  }
  if (!health.whole())
    return fail(Code::kCorrupt, flags.folders.front(),
                health.repairable() ? "not whole, and can be brought back" : "not whole, and cannot be brought back");
  uint64_t bytes = 0;
  for (const parity::SetHealth& set : health.sets) {
    for (const parity::MemberRecord& member : set.set.members) bytes += member.bytes + set.set.parity * set.set.chunk;
  }
  context.out.info(fmt::format("{} and their parity are whole: {} read in {}", counted(health.world, "rank"),
                               human_bytes(bytes), human_us(watch.elapsed_us())));
  return {};
}

}  // namespace ckpt::cli
