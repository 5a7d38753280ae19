#include "cli/job_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "cli/plural.h"
#include "cli/topology_file.h"
#include "lib/base/clock.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/store/job_common.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

std::string own_hostname() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string text_of(const Json& json) { return lay_out_json(json.dump(-1, ' ', true, Json::error_handler_t::replace)); }

/// "those of ranks 1, 2 lie on b, c"
std::string elsewhere_text(const store::Job& job, const std::vector<PartView>& parts) {
  constexpr size_t kMostNamed = 8;
  std::vector<std::string> named;
  size_t count = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].state != PartState::kElsewhere || ++count > kMostNamed) continue;
    named.push_back(fmt::format("rank {} on {}", rank, escape_for_terminal(job.members[rank].host)));
  }
  if (count > kMostNamed) named.push_back(fmt::format("and {} more", count - kMostNamed));
  return fmt::format("{} elsewhere: {}", counted(count, "part"), fmt::join(named, ", "));
}

bool any_elsewhere(const std::vector<PartView>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const PartView& p) { return p.state == PartState::kElsewhere; });
}

/// What parts with replicas of one another's ranks have in common; of all parts where nobody tells which those are.
struct CommonSet {
  std::vector<uint32_t> parts;  ///< that are here
  store::CommonMemory memory;
};

Result<std::vector<CommonSet>> common_sets(const fs::path& folder, const store::Job& job,
                                           const std::vector<PartView>& parts, const Cancel& cancel) {
  std::vector<std::vector<uint32_t>> sets = store::replica_parts(job.topology);
  if (sets.empty()) {
    sets.emplace_back();
    for (uint32_t part = 0; part < parts.size(); ++part) sets[0].push_back(part);
  }
  std::vector<CommonSet> out;
  for (const std::vector<uint32_t>& set : sets) {
    CommonSet& one = out.emplace_back();
    std::vector<fs::path> images;
    for (const uint32_t part : set) {
      if (parts[part].state != PartState::kWhole) continue;
      one.parts.push_back(part), images.push_back(folder / store::part_name(part));
    }
    CKPT_TRY_ASSIGN(one.memory, store::common_memory(images, cancel));
  }
  return out;
}

store::CommonMemory sum_of(const std::vector<CommonSet>& sets) {
  store::CommonMemory out;
  for (const CommonSet& set : sets) {
    out.parts += set.memory.parts, out.bytes += set.memory.bytes, out.common += set.memory.common;
    out.estimated = out.estimated || set.memory.estimated;
  }
  return out;
}

Json memory_json(const store::CommonMemory& memory) {
  return {{"parts", memory.parts},
          {"bytes", memory.bytes},
          {"common_bytes", memory.common},
          {"estimated", memory.estimated}};
}

std::string memory_text(const store::CommonMemory& memory) {
  return fmt::format("\nof {}{} that {} hold, {} are of an earlier rank, too\n", memory.estimated ? "about " : "",
                     human_bytes(memory.bytes), counted(memory.parts, "part"), human_bytes(memory.common));
}

void show_sets(Context& context, const std::vector<CommonSet>& sets) {
  std::vector<std::vector<std::string>> rows;
  for (const CommonSet& set : sets)
    rows.push_back({fmt::format("{}", fmt::join(set.parts, " ")), human_bytes(set.memory.bytes),
                    human_bytes(set.memory.common)});
  context.out.data("\n");
  context.out.table({"REPLICAS", "MEMORY", "COMMON"}, rows, {1, 2});
}

void show_topology(Context& context, const std::vector<store::JobRank>& topology) {
  std::vector<std::string> head = {"RANK", "PART", "NODE", "RACK"};
  for (const auto& [name, value] : topology.at(0).place.groups) {
    std::string& column = head.emplace_back(name);
    std::transform(column.begin(), column.end(), column.begin(), [](unsigned char c) { return std::toupper(c); });
  }
  std::vector<std::vector<std::string>> rows;
  for (size_t rank = 0; rank < topology.size(); ++rank) {
    const Place& place = topology[rank].place;
    auto& row = rows.emplace_back(std::vector{std::to_string(rank), std::to_string(topology[rank].part), place.node,
                                              place.rack.empty() ? "-" : place.rack});
    for (const auto& [name, value] : place.groups) row.push_back(std::to_string(value));
  }
  context.out.data("\n");
  context.out.table(head, rows, {0, 1});
}

Result<void> take_topology(store::Job& job, const std::string& path) {
  CKPT_TRY_ASSIGN(const std::string text, read_topology_text(path));
  CKPT_TRY_ASSIGN(std::vector<Place> places, parse_topology(text, path));
  std::vector<std::vector<uint32_t>> ranks;
  for (uint32_t part = 0; part < job.members.size(); ++part)
    ranks.push_back(store::training_ranks(job.members[part], part));
  CKPT_TRY_ASSIGN(job.topology, store::place_ranks(std::move(places), ranks, path));
  return {};
}

Json parts_json(const store::Job& job, const std::vector<PartView>& parts) {
  Json out = Json::array();
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    out.push_back({{"rank", rank},
                   {"part", store::part_name(static_cast<uint32_t>(rank))},
                   {"host", job.members[rank].host},
                   {"state", part_state_name(parts[rank].state)},
                   {"finding", parts[rank].finding}});
  }
  return out;
}

}  // namespace

const char* part_state_name(PartState state) {
  return state == PartState::kWhole ? "whole" : state == PartState::kElsewhere ? "elsewhere" : "damaged";
}

std::vector<PartView> look_at_parts(const fs::path& folder, const store::Job& job) {
  const std::string here = own_hostname();
  std::vector<PartView> out;
  for (uint32_t rank = 0; rank < job.members.size(); ++rank) {
    auto part = store::read_part(folder, job, rank);
    PartView& view = out.emplace_back();
    if (part) continue;
    const bool elsewhere = part.error().code == Code::kNotFound && job.members[rank].host != here;
    view.state = elsewhere ? PartState::kElsewhere : PartState::kDamaged;
    view.finding = part.error().text();
  }
  return out;
}

Result<void> inspect_job(Context& context, const fs::path& folder, bool common, const std::string& topology) {
  CKPT_TRY_ASSIGN(store::Job job, store::read_job(folder));
  if (!topology.empty()) CKPT_TRY(take_topology(job, topology));
  const std::vector<PartView> parts = look_at_parts(folder, job);
  std::vector<CommonSet> sets;
  if (common) {
    CKPT_TRY_ASSIGN(sets, common_sets(folder, job, parts, context.cancel));
  }
  const bool of_replicas = common && !store::replica_parts(job.topology).empty();
  if (context.out.json()) {
    Json doc = {{"schema", "ckpt.inspect/1"}, {"kind", "job"}, {"path", folder.string()}};
    doc["job"] = Json::parse(store::to_json(job));
    doc["parts"] = parts_json(job, parts);
    if (common) doc["memory"] = memory_json(sum_of(sets));
    for (size_t i = 0; of_replicas && i < sets.size(); ++i) {
      Json set = {{"ranks", sets[i].parts}};
      set.update(memory_json(sets[i].memory));
      doc["memory"]["replicas"].push_back(std::move(set));
    }
    context.out.data(text_of(doc));
    return {};
  }
  context.out.data(fmt::format("{} of {}, {}, {}\n\n", escape_for_terminal(job.kind), counted(parts.size(), "rank"),
                               escape_for_terminal(job.created), job.id));
  std::vector<std::vector<std::string>> rows;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const store::JobMember& m = job.members[rank];
    std::string command;
    for (const std::string& word : m.arguments) command += (command.empty() ? "" : " ") + word;
    rows.push_back({std::to_string(rank), m.host, std::to_string(m.pid), human_bytes(m.bytes), human_us(m.frozen_us),
                    std::to_string(m.connections), part_state_name(parts[rank].state), command});
  }
  context.out.table({"RANK", "HOST", "PID", "SIZE", "FROZEN", "CONNECTIONS", "STATE", "COMMAND"}, rows,
                    {0, 2, 3, 4, 5});
  if (!job.topology.empty()) show_topology(context, job.topology);
  if (common) context.out.data(memory_text(sum_of(sets)));
  if (of_replicas) show_sets(context, sets);
  if (any_elsewhere(parts)) context.out.info(elsewhere_text(job, parts));
  return {};
}

Result<void> verify_job(Context& context, const fs::path& folder) {
  Stopwatch watch;
  CKPT_TRY_ASSIGN(const store::Job job, store::read_job(folder));
  std::vector<PartView> parts = look_at_parts(folder, job);
  uint64_t bytes = 0;
  size_t damaged = 0;
  for (uint32_t rank = 0; rank < parts.size(); ++rank) {
    PartView& part = parts[rank];
    if (part.state == PartState::kWhole) {
      auto reader = store::ImageReader::open(folder / store::part_name(rank));
      if (!reader) {
        part = {PartState::kDamaged, reader.error().text()};
      } else {
        CKPT_TRY_ASSIGN(const auto findings, (*reader)->verify(context.progress, context.cancel));
        bytes += (*reader)->chain_bytes();
        if (!findings.empty()) part = {PartState::kDamaged, findings[0].file + ": " + findings[0].what};
      }
    }
    if (part.state != PartState::kDamaged) continue;
    ++damaged;
    if (!context.out.json()) context.out.data(fmt::format("rank {}: {}\n", rank, escape_for_terminal(part.finding)));
  }
  const uint64_t us = watch.elapsed_us();
  if (context.out.json()) {
    const Json doc = {{"schema", "ckpt.verify/1"},
                      {"kind", "job"},
                      {"path", folder.string()},
                      {"ok", damaged == 0},
                      {"id", job.id},
                      {"bytes_read", bytes},
                      {"duration_us", us},
                      {"parts", parts_json(job, parts)}};
    context.out.data(text_of(doc));
  }
  if (damaged != 0) return fail(Code::kCorrupt, folder.string(), fmt::format("damaged: {}", counted(damaged, "part")));
  if (any_elsewhere(parts)) {
    return Error(Code::kPartial, folder.string(), "what is here is sound; " + elsewhere_text(job, parts))
        .with_hint("verify it on each host");
  }
  context.out.info(fmt::format("the image of the job is sound: {}, {} read in {}", counted(parts.size(), "part"),
                               human_bytes(bytes), human_us(us)));
  return {};
}

Result<std::vector<fs::path>> parts_here(const fs::path& folder, Context& context) {
  CKPT_TRY_ASSIGN(const store::Job job, store::read_job(folder));
  const std::vector<PartView> parts = look_at_parts(folder, job);
  std::vector<fs::path> out;
  for (uint32_t rank = 0; rank < parts.size(); ++rank) {
    const fs::path dir = folder / store::part_name(rank);
    if (store::ImageReader::looks_like_image(dir)) out.push_back(dir);
  }
  if (any_elsewhere(parts)) context.out.info(elsewhere_text(job, parts));
  return out;
}

}  // namespace ckpt::cli
