#include "cli/job_view.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/plural.h"
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

std::vector<fs::path> whole_parts(const fs::path& folder, const std::vector<PartView>& parts) {
  std::vector<fs::path> out;
  for (uint32_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].state == PartState::kWhole) out.push_back(folder / store::part_name(rank));
  }
  return out;
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

Result<void> inspect_job(Context& context, const fs::path& folder, bool common) {
  CKPT_TRY_ASSIGN(const store::Job job, store::read_job(folder));
  const std::vector<PartView> parts = look_at_parts(folder, job);
  std::optional<store::CommonMemory> memory;
  if (common) {
    CKPT_TRY_ASSIGN(memory, store::common_memory(whole_parts(folder, parts), context.cancel));
  }
  if (context.out.json()) {
    Json doc = {{"schema", "ckpt.inspect/1"}, {"kind", "job"}, {"path", folder.string()}};
    doc["job"] = Json::parse(store::to_json(job));
    doc["parts"] = parts_json(job, parts);
    if (memory) {
      doc["memory"] = {{"parts", memory->parts},
                       {"bytes", memory->bytes},
                       {"common_bytes", memory->common},
                       {"estimated", memory->estimated}};
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
  if (memory) {
    context.out.data(fmt::format("\nof {}{} that {} hold, {} are of an earlier rank, too\n",
                                 memory->estimated ? "about " : "", human_bytes(memory->bytes),
                                 counted(memory->parts, "part"), human_bytes(memory->common)));
  }
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
