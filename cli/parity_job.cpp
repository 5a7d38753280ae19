#include "cli/parity_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "cli/model_view.h"
#include "cli/plural.h"
#include "cli/ranks.h"
#include "cli/topology_file.h"
#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/text.h"

namespace ckpt::cli {

namespace {

std::string ranks_text(const std::vector<uint32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + fmt::format("{}", fmt::join(ranks, ", "));
}

}  // namespace

void add_parity_flags(VerbOptions& app, ParityFlags& flags, const char* folders, const char* dry_run) {
  app.add_option("DIR", flags.folders, folders).required();
  app.add_flag("-n,--dry-run", flags.dry_run, dry_run);
  app.add_option("--topology", flags.topology, "Which rank runs on which node: lines of RANK NODE [RACK]")
      .type_name("FILE");
  add_mpi_flag(app, flags.mpi);
}

Result<ParityJob> ParityJob::open(Context& context, const ParityFlags& flags) {
  ParityJob out(context);
  out.folders_ = flags.folders;
  out.memory_ = flags.max_memory / flags.folders.size();
  if (const auto kind = launched_by(flags.mpi)) {
    CKPT_TRY_ASSIGN(out.transport_, connect_ranks(*kind));
    out.placed_ = out.place_ranks(flags);
    return out;
  }
  if (flags.folders.size() == 1 && number_in("WORLD_SIZE").value_or(1) > 1)
    return Error(Code::kUsage, "WORLD_SIZE", "says that there are more ranks, and nothing connects them")
        .with_hint("start ckpt by mpirun or srun --mpi, or name the folders of all ranks");
  CKPT_TRY(out.place_folders(flags));
  std::vector<std::filesystem::path> known;
  for (const std::string& folder : out.folders_) {
    std::error_code ec;
    known.push_back(std::filesystem::weakly_canonical(folder, ec));
    if (std::count(known.begin(), known.end(), known.back()) > 1)
      return fail(Code::kUsage, folder, "is named twice: each rank has a folder of its own");
  }
  return out;
}

namespace {

Result<std::vector<Place>> read_topology(const std::string& path, size_t ranks) {
  CKPT_TRY_ASSIGN(const std::string text, read_topology_text(path));
  CKPT_TRY_ASSIGN(auto places, parse_topology(text, path));
  if (places.size() != ranks)
    return fail(Code::kUsage, path, fmt::format("is of {}, and there are {}", counted(places.size(), "rank"), ranks));
  return places;
}

}  // namespace

/// Without MPI each folder is on a node of its own, if the topology does not say otherwise.
Result<void> ParityJob::place_folders(const ParityFlags& flags) {
  for (size_t i = 0; i < folders_.size(); ++i) places_.push_back({fmt::format("node{}", i), ""});
  if (flags.topology.empty()) return {};
  CKPT_TRY_ASSIGN(places_, read_topology(flags.topology, folders_.size()));
  return {};
}

/// Whether what the launcher has said is what MPI says.
Result<void> ParityJob::check_launch() const {
  if (folders_.size() != 1)
    return Error(Code::kUsage, folders_[1], "is one folder too many: each rank names its own")
        .with_hint("{rank}, {local_rank} and {node} in DIR stand for those of the rank; --mpi none: no MPI");
  for (const auto& [name, is] : {std::pair("WORLD_SIZE", transport_->size()), std::pair("RANK", transport_->rank())}) {
    if (number_in(name).value_or(is) != is)
      return fail(Code::kUsage, name, fmt::format("is {}, and MPI says {}", *number_in(name), is));
  }
  return {};
}

/// Where this rank runs: what the topology says, else the variables of launchers, else the name of the host.
Result<Place> ParityJob::own_place(const ParityFlags& flags) const {
  CKPT_TRY(check_launch());
  if (!flags.topology.empty()) {
    CKPT_TRY_ASSIGN(const auto places, read_topology(flags.topology, transport_->size()));
    return places[transport_->rank()];
  }
  if (const auto local = number_in("LOCAL_WORLD_SIZE"); local && *local != 0)
    return Place{fmt::format("node{}", transport_->rank() / *local), ""};
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) return sys_error("gethostname", "the host has no name");
  return Place{host.data(), ""};
}

/// All ranks know at once of what only one of them may have come upon; then all know where all run.
Result<void> ParityJob::place_ranks(const ParityFlags& flags) {
  const auto mine = own_place(flags);
  CKPT_TRY(parity::agree(*transport_, mine ? Result<void>() : Result<void>(mine.error())));
  CKPT_TRY_ASSIGN(auto nodes, transport_->all_gather(mine->node));
  CKPT_TRY_ASSIGN(auto racks, transport_->all_gather(mine->rack));
  for (size_t i = 0; i < nodes.size(); ++i) places_.push_back({std::move(nodes[i]), std::move(racks[i])});
  const uint32_t rank = transport_->rank();
  const auto before = std::count_if(places_.begin(), places_.begin() + rank,
                                    [&](const Place& other) { return other.node == places_[rank].node; });
  std::string& folder = folders_.front();
  for (const auto& [name, value] :
       {std::pair("{rank}", fmt::format("{}", rank)), std::pair("{local_rank}", fmt::format("{}", before)),
        std::pair("{node}", places_[rank].node)}) {
    for (size_t at; (at = folder.find(name)) != std::string::npos;) folder.replace(at, std::strlen(name), value);
  }
  return {};
}

Result<void> ParityJob::run_ranks(const std::function<Result<void>(parity::Rank&)>& work) {
  if (transport_ != nullptr) {
    ProgressSink& progress = speaks() ? context_.progress : null_progress();
    parity::Rank rank{*transport_, folders_.front(), places_[transport_->rank()], memory_, progress, context_.cancel};
    return work(rank);
  }
  auto results = run_locally(static_cast<uint32_t>(folders_.size()), [&](Transport& transport) {
    parity::Rank rank{transport, folders_[transport.rank()], places_[transport.rank()],
                      memory_,   context_.progress,          context_.cancel};
    return work(rank);
  });
  if (!results) return results.error();
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
    else
      out.push_back("nothing is lost, but it is not what was protected: ckpt protect protects what is there");
  }
  for (const std::string& folder : health.strangers) {
    out.push_back(
        fmt::format("{} is not of this protection of {}", escape_for_terminal(folder), counted(health.world, "rank")));
  }
  if (!health.unknown.empty()) out.push_back("nothing is left of the sets of " + ranks_text(health.unknown));
  return out;
}

void write_health(JsonWriter& out, const parity::Health& health) {
  out.members("whole", health.whole(), "repairable", health.repairable(), "epoch", health.epoch, "ranks", health.world,
              "unknown_ranks", health.unknown, "strangers", health.strangers);
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

static const char* what_is_wrong(const parity::Health& health) {
  if (!health.repairable()) return "not whole, and cannot be brought back";
  const bool lost = std::any_of(health.sets.begin(), health.sets.end(),
                                [](const parity::SetHealth& set) { return !set.from.empty(); });
  return lost ? "not whole, and can be brought back" : "nothing is lost, but it was changed after it was protected";
}

Result<void> verify_parity(Context& context, const ParityFlags& flags) {
  CKPT_TRY_ASSIGN(ParityJob job, ParityJob::open(context, flags));
  Stopwatch watch;  // MPI has started
  const auto checked = job.run<parity::Health>(parity::check_parity);
  if (!job.speaks()) return job.end_silently(checked);
  if (!checked) return checked.error();
  const parity::Health& health = *checked;
  if (context.out.json()) {
    JsonWriter out;
    out.open('{');
    out.members("schema", "ckpt.verify/1", "kind", "parity", "path", job.first_folder(), "ok", health.whole(),
                "duration_us", watch.elapsed_us());
    write_health(out, health);
    context.out.data(std::move(out).finish());
  } else {
    for (const std::string& line : health_lines(health)) context.out.data(line + "\n");
  }
  if (!health.strangers.empty())
    return fail(Code::kCorrupt, health.strangers.front(),
                fmt::format("is not of this protection of {}", counted(health.world, "rank")));
  if (!health.whole()) return fail(Code::kCorrupt, job.first_folder(), what_is_wrong(health));
  uint64_t bytes = 0;
  for (const parity::SetHealth& set : health.sets) {
    for (const parity::MemberRecord& member : set.set.members) bytes += member.bytes + set.set.parity * set.set.chunk;
  }
  context.out.info(fmt::format("{} and their parity are whole: {} read in {}", counted(health.world, "rank"),
                               human_bytes(bytes), human_us(watch.elapsed_us())));
  return {};
}

}  // namespace ckpt::cli
