#include "lib/store/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>

#include "lib/base/digest.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/base/json_reader.h"
#include "lib/base/json_writer.h"
#include "lib/base/replace_file.h"
#include "lib/store/image_files.h"

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr const char *kJobSchema = "ckpt.job/1", *kAnyJobSchema = "\"ckpt.job/", *kPartPrefix = "rank-";
constexpr uint64_t kMaxJobText = uint64_t{32} << 20;
constexpr uint64_t kMaxPartManifest = uint64_t{256} << 20;
constexpr size_t kJobDepth = 6;

constexpr std::array<std::string_view, 24> kRankVariables = {"RANK",
                                                             "WORLD_SIZE",
                                                             "LOCAL_RANK",
                                                             "LOCAL_WORLD_SIZE",
                                                             "GROUP_RANK",
                                                             "MASTER_ADDR",
                                                             "MASTER_PORT",
                                                             "SLURM_JOB_ID",
                                                             "SLURM_STEP_ID",
                                                             "SLURM_PROCID",
                                                             "SLURM_LOCALID",
                                                             "SLURM_NODEID",
                                                             "SLURM_NTASKS",
                                                             "SLURM_NNODES",
                                                             "OMPI_COMM_WORLD_RANK",
                                                             "OMPI_COMM_WORLD_SIZE",
                                                             "OMPI_COMM_WORLD_LOCAL_RANK",
                                                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                             "OMPI_COMM_WORLD_NODE_RANK",
                                                             "PMIX_RANK",
                                                             "PMIX_NAMESPACE",
                                                             "PMI_RANK",
                                                             "PMI_SIZE",
                                                             "MPI_LOCALRANKID"};

Json variables_json(const RankVariables& variables) {
  Json out = Json::object();
  for (const auto& [name, value] : variables) out[name] = value;
  return out;
}

RankVariables read_variables(const Json& object) {
  RankVariables out;
  for (const auto& [name, value] : object.items()) out.emplace_back(name, value.get<std::string>());
  return out;
}

Json member_json(const JobMember& m, size_t rank) {
  Json out = {{"rank", rank},
              {"part", part_name(static_cast<uint32_t>(rank))},
              {"host", m.host},
              {"boot_id", m.boot_id},
              {"folder", m.folder},
              {"image_id", m.image_id},
              {"manifest_sha256", m.manifest_sha256},
              {"bytes", m.bytes},
              {"pid", m.pid},
              {"arguments", m.arguments},
              {"frozen_us", m.frozen_us},
              {"connections", m.connections},
              {"variables", variables_json(m.variables)},
              {"processes", Json::array()}};
  for (const JobProcess& process : m.processes)
    out["processes"].push_back({{"pid", process.pid}, {"variables", variables_json(process.variables)}});
  return out;
}

JobMember read_member(const Json& in) {
  JobMember out;
  out.host = in.at("host").get<std::string>();
  out.boot_id = in.at("boot_id").get<std::string>();
  out.folder = in.at("folder").get<std::string>();
  out.image_id = in.at("image_id").get<std::string>();
  out.manifest_sha256 = in.at("manifest_sha256").get<std::string>();
  out.bytes = in.at("bytes").get<uint64_t>();
  out.pid = in.at("pid").get<int>();
  out.arguments = in.at("arguments").get<std::vector<std::string>>();
  out.frozen_us = in.at("frozen_us").get<uint64_t>();
  out.connections = in.at("connections").get<uint64_t>();
  out.variables = read_variables(in.at("variables"));
  for (const Json& process : in.at("processes"))
    out.processes.push_back({process.at("pid").get<int>(), read_variables(process.at("variables"))});
  return out;
}

Json rank_json(const JobRank& one, size_t rank) {
  Json out = {{"rank", rank}, {"part", part_name(one.part)}, {"node", one.place.node}, {"rack", one.place.rack}};
  out["groups"] = Json::object();
  for (const auto& [name, value] : one.place.groups) out["groups"][name] = value;
  return out;
}

JobRank read_rank(const Json& in) {
  JobRank out;
  const auto part = in.at("part").get<std::string>(), prefix = part_name(0).substr(0, part_name(0).size() - 1);
  const auto end = part.data() + part.size();
  const bool named = part.starts_with(prefix);
  const auto [stop, error] = std::from_chars(part.data() + (named ? prefix.size() : 0), end, out.part);
  if (!named || error != std::errc() || stop != end) out.part = kMaxRanks;  // which check_job refuses
  out.place.node = in.at("node").get<std::string>(), out.place.rack = in.at("rack").get<std::string>();
  for (const auto& [name, value] : in.at("groups").items()) out.place.groups[name] = value.get<uint32_t>();
  return out;
}

/// They are heads of columns, and numbers that are counted with.
bool are_groups(const Json& in) {
  if (!in.is_object()) return false;
  for (const auto& [name, value] : in.items()) {
    if (!is_group_name(name) || !value.is_number_unsigned() || value.get<uint64_t>() >= kMostRanks) return false;
  }
  return true;
}

Result<void> check_topology(const Json& in, const Job& job) {
  if (job.topology.size() > kMaxRanks) return fail(Code::kCorrupt, "", "topology: is of too many ranks");
  std::vector<Place> places;
  for (size_t rank = 0; rank < job.topology.size(); ++rank) {
    if (job.topology[rank].part >= job.members.size() || in.at("topology")[rank].at("rank").get<uint64_t>() != rank)
      return fail(Code::kCorrupt, "", fmt::format("topology[{}]: is not that of rank {}", rank, rank));
    if (!are_groups(in.at("topology")[rank].at("groups")))
      return fail(Code::kCorrupt, "", fmt::format("topology[{}]: has what are no coordinates", rank));
    places.push_back(job.topology[rank].place);
  }
  const auto checked = check_groups(places, "topology");
  return checked ? Result<void>() : fail(Code::kCorrupt, "", "topology: " + checked.error().message);
}

Result<void> check_job(const Json& in, const Job& job) {
  if (!is_id(job.id)) return fail(Code::kCorrupt, "", "id: is not 32 hex digits");
  if (job.members.empty() || job.members.size() > kMaxRanks)
    return fail(Code::kCorrupt, "", "parts: are none, or too many");
  for (size_t rank = 0; rank < job.members.size(); ++rank) {
    const JobMember& member = job.members[rank];
    const Json& part = in.at("parts")[rank];
    if (part.at("rank").get<uint64_t>() != rank ||
        part.at("part").get<std::string>() != part_name(static_cast<uint32_t>(rank)))
      return fail(Code::kCorrupt, "", fmt::format("parts[{}]: is not that of rank {}", rank, rank));
    if (!is_id(member.image_id) || !is_hex(member.manifest_sha256, 64))
      return fail(Code::kCorrupt, "", fmt::format("parts[{}]: has no digests", rank));
  }
  return {};
}

}  // namespace

RankVariables rank_variables(std::string_view environment) {
  RankVariables out;
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (std::find(kRankVariables.begin(), kRankVariables.end(), name) != kRankVariables.end())
      out.emplace_back(name, entry.substr(equals + 1, 4096));
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string part_name(uint32_t rank) { return kPartPrefix + std::to_string(rank); }

std::string to_json(const Job& job) {
  Json out = {{"schema", kJobSchema},        {"id", job.id},          {"created", job.created}, {"kind", job.kind},
              {"ranks", job.members.size()}, {"parts", Json::array()}};
  for (size_t rank = 0; rank < job.members.size(); ++rank) out["parts"].push_back(member_json(job.members[rank], rank));
  if (!job.topology.empty()) out["topology"] = Json::array();
  for (size_t rank = 0; rank < job.topology.size(); ++rank)
    out["topology"].push_back(rank_json(job.topology[rank], rank));
  return lay_out_json(out.dump(-1, ' ', true, Json::error_handler_t::replace));
}

Result<Job> parse_job(std::string_view text) {
  if (!json_nests_at_most(text, kJobDepth)) return fail(Code::kCorrupt, "", "is no JSON, or nests too deep");
  try {
    const Json in = Json::parse(text);
    const auto schema = in.at("schema").get<std::string>();
    if (schema != kJobSchema)
      return fail(schema.starts_with("ckpt.job/") ? Code::kUnsupported : Code::kCorrupt, "",
                  fmt::format("has the format {}, this ckpt knows {}", schema, kJobSchema));
    Job out;
    out.id = in.at("id").get<std::string>();
    out.created = in.at("created").get<std::string>();
    out.kind = in.at("kind").get<std::string>();
    for (const Json& part : in.at("parts")) out.members.push_back(read_member(part));
    if (in.contains("topology"))
      for (const Json& rank : in.at("topology")) out.topology.push_back(read_rank(rank));
    CKPT_TRY(check_job(in, out));
    CKPT_TRY(check_topology(in, out));
    return out;
  } catch (const Json::exception& e) {
    return fail(Code::kCorrupt, "", fmt::format("is no description of a job: {}", e.what()));
  }
}

namespace {

bool has_part(const fs::path& folder) {
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const bool is_named_so = it->path().filename().string().starts_with(kPartPrefix);
    if (is_named_so && ImageReader::looks_like_image(it->path())) return true;
  }
  return false;
}

/// The first member of what `to_json` writes.
bool says_that_it_is_one(const fs::path& file) {
  constexpr uint64_t kBegin = 256;
  const auto fd = io::open_file(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd) return false;
  const auto st = io::stat_fd(fd->get(), file.string());
  if (!st) return false;
  std::string begin(std::min(kBegin, static_cast<uint64_t>(st->st_size)), '\0');
  const MutableByteSpan bytes = std::as_writable_bytes(std::span(begin));
  return io::pread_exact(fd->get(), bytes, 0, file.string()) && begin.find(kAnyJobSchema) != std::string::npos;
}

}  // namespace

/// Folders of models may have a file of this name, too: of one that is damaged the parts beside it tell.
bool looks_like_job(const fs::path& folder) {
  struct stat st {};
  const fs::path file = folder / kJobName;
  if (::lstat(file.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return false;
  return says_that_it_is_one(file) || has_part(folder);
}

Result<Job> read_job(const fs::path& folder) {
  const fs::path path = folder / kJobName;
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode))
    return fail(Code::kNotFound, path.string(), "is not there: no whole image of a job");
  CKPT_TRY_ASSIGN(const UniqueFd fd, io::open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  CKPT_TRY_ASSIGN(const std::string text, io::read_all(fd.get(), kMaxJobText, path.string()));
  auto job = parse_job(text);
  if (!job && job.error().subject.empty()) job.error().subject = path.string();
  return job;
}

Result<void> write_job(const fs::path& folder, const Job& job) {
  const fs::path path = folder / kJobName;
  struct stat st {};
  if (::lstat(path.c_str(), &st) == 0) return fail(Code::kUsage, path.string(), "is there already");
  return io::replace_file(path, to_json(job));
}

Result<Manifest> read_part(const fs::path& folder, const Job& job, uint32_t rank) {
  const fs::path dir = folder / part_name(rank);
  const JobMember& member = job.members.at(rank);
  if (!ImageReader::looks_like_image(dir)) {
    return Error(Code::kNotFound, dir.string(), "is not here")
        .with_hint(fmt::format("it was written on {} to {}", member.host, member.folder));
  }
  CKPT_TRY_ASSIGN(Manifest manifest, read_manifest(dir));
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(dir / kManifestName, kMaxPartManifest));
  if (manifest.id != member.image_id ||
      manifest.job != JobPart{job.id, rank, static_cast<uint32_t>(job.members.size())} ||
      sha256_hex(as_bytes(text)) != member.manifest_sha256)
    return fail(Code::kMismatch, dir.string(),
                fmt::format("is another image than job {} has for rank {}", job.id, rank));
  return manifest;
}

}  // namespace ckpt::store
