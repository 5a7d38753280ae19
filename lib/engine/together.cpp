#include "lib/engine/together.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/engine/words.h"
#include "lib/proc/host.h"
#include "lib/proc/procfs.h"
#include "lib/store/image_files.h"
#include "lib/store/remove.h"

namespace ckpt::engine {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Result<std::vector<std::string>> Together::exchange(const Word& mine, const Patience& patience) {
  return take(circle_.gather(write_word(mine.step, mine.status, mine.data), patience), mine.step);
}

/// From here on there is nothing more to agree on: each has heard it.
Error Together::end_with(Error common) {
  circle_.end();
  common_ = common;
  return common;
}

/// What all have said, up to the first error.
Result<std::vector<std::string>> Together::take(const Result<std::vector<std::string>>& answers, const char* step) {
  if (!answers) return answers.error();
  std::vector<std::string> out;
  std::optional<Error> astray;  // counts less than a reason
  for (uint32_t rank = 0; rank < answers->size(); ++rank) {
    auto word = read_word((*answers)[rank]);
    const std::string who = fmt::format("rank {}{}", rank, rank < hosts_.size() ? " on " + hosts_[rank] : "");
    if (word && word->failed) {
      word->error.message += " (" + who + ")";
      return end_with(std::move(word->error));
    }
    if (!word)
      astray = Error(Code::kBug, who, "says what no member says");
    else if (word->step != step)
      astray = Error(Code::kBug, who, "is at another step: " + word->step);
    else
      out.push_back(std::move(word->data));
  }
  if (astray) return end_with(std::move(*astray));
  return out;
}

Result<void> Together::agree(const char* step, const Patience& patience) {
  CKPT_TRY(exchange({step}, patience));
  return {};
}

/// Waits for the others, who may be far behind; once nobody wants to wait any longer, for a moment only.
Error Together::fail(Error mine) {
  constexpr uint64_t kMomentUs = 5'000'000;
  if (circle_.has_ended()) return mine;
  auto wait = [&](auto answers) -> Result<std::vector<std::string>> {
    if (answers || !circle_.is_overdue()) return answers;
    if (answers.error().code != Code::kInterrupted) answers = circle_.overdue({&cancel_});
    return answers || !circle_.is_overdue() ? answers : circle_.overdue({nullptr, kMomentUs});
  };
  Result<std::vector<std::string>> answers = std::vector<std::string>();
  if (circle_.is_overdue()) {
    answers = wait(circle_.overdue({&cancel_}));
    if (!answers) return mine;
    const auto failed = std::find_if(answers->begin(), answers->end(), [](const std::string& text) {
      const auto word = read_word(text);
      return !word || word->failed;
    });
    if (failed != answers->end()) {
      auto common = take(answers, "");
      return common ? mine : std::move(common).error();
    }
  }
  answers = wait(circle_.gather(write_word("failed", mine, ""), {&cancel_}));
  if (!answers) return mine;
  auto common = take(answers, "failed");
  // What its own target was left in nobody else tells.
  return common || mine.code == Code::kTargetAltered ? mine : std::move(common).error();
}

Result<void> Together::join(const Facts& facts) {
  facts_ = facts;
  CKPT_TRY_ASSIGN(const proc::Host host, proc::read_host());
  const bool restores = !facts.job.empty();
  std::string id = facts.job;
  if (!restores) {
    CKPT_TRY_ASSIGN(id, random_id());
  }
  const Json mine = {{"verb", facts.verb},
                     {"host", host.hostname},
                     {"id", id},
                     {"created", rfc3339_now()},
                     {"topology", facts.topology_id}};
  CKPT_TRY_ASSIGN(const auto answers,
                  exchange({"join", {}, mine.dump(-1, ' ', true, Json::error_handler_t::replace)}, {&cancel_}));
  std::vector<Json> all;
  for (const std::string& answer : answers) {
    all.push_back(Json::parse(answer, nullptr, false));
    hosts_.push_back(all.back().value("host", ""));
  }
  job_ = all.front().value("id", ""), created_ = all.front().value("created", "");
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    // All find the same.
    auto refuse = [&](const std::string& subject, const std::string& text) {
      return end_with(Error(Code::kUsage, subject, fmt::format("{} (rank {} on {})", text, rank, hosts_[rank])));
    };
    const std::string verb = all[rank].value("verb", ""), first = all.front().value("verb", "");
    if (verb != first) return refuse("--together", fmt::format("is {}, and {} on rank 0", verb, first));
    if (all[rank].value("topology", "") != all.front().value("topology", ""))
      return refuse("--topology", "is not given the file that rank 0 is given");
    if (restores && all[rank].value("id", "") != job_)
      return refuse(facts.folder.string(),
                    fmt::format("is of job {}, and on rank 0 of job {}", all[rank].value("id", ""), job_));
  }
  if (facts.ranks != 0 && facts.ranks != circle_.size()) {
    return end_with(Error(Code::kUsage, facts.folder.string(),
                          fmt::format("is of {} ranks, and {} were started", facts.ranks, circle_.size())));
  }
  if (restores) return {};
  if (store::looks_like_job(facts.folder))
    return Error(Code::kUsage, facts.folder.string(), "holds the image of a job already");
  if (std::error_code ec; fs::exists(facts.folder / store::kJobName, ec))
    return Error(Code::kUsage, (facts.folder / store::kJobName).string(), "is there already, and not of ckpt");
  const fs::path part = facts.folder / store::part_name(rank());
  if (!store::ImageReader::looks_like_image(part)) return {};
  return Error(Code::kUsage, part.string(), "is there: a killed run has left it, or it is of a job described elsewhere")
      .with_hint("ckpt rm " + part.string());
}

Result<void> Together::exchange_ends(const char* step, const std::vector<ConnectionEnd>& ends,
                                     const Patience& patience) {
  CKPT_TRY_ASSIGN(const auto answers, exchange({step, {}, write_ends(ends)}, patience));
  ends_.clear();
  for (const std::string& answer : answers) {
    CKPT_TRY_ASSIGN(std::vector<ConnectionEnd> of_one, read_ends(answer));
    ends_.push_back(std::move(of_one));
  }
  return {};
}

Result<std::vector<size_t>> Together::find_outside(const Look& look) {
  constexpr int kLooks = 4;
  constexpr useconds_t kPauseUs = 50'000;
  std::map<std::pair<std::string, std::string>, int> seen;  ///< in how many looks
  std::vector<size_t> out;
  for (int done = 1; done <= kLooks; ++done) {
    if (done > 1) ::usleep(kPauseUs);
    CKPT_TRY_ASSIGN(const std::vector<ConnectionEnd> mine, look());
    CKPT_TRY(exchange_ends("connections", mine, {&cancel_}));
    out.clear();
    bool any = false;  // of all members: each decides the same
    for (uint32_t rank = 0; rank < ends_.size(); ++rank) any |= !outside_connections(ends_, rank).empty();
    for (size_t at : outside_connections(ends_, rank())) {
      if (++seen[{mine[at].local, mine[at].remote}] == kLooks) out.push_back(at);
    }
    if (!any) return out;
  }
  return out;
}

/// Standing still for longer than --timeout is worse than no image.
Result<std::vector<size_t>> Together::frozen(const std::vector<ConnectionEnd>& ends) {
  Result<void> met = exchange_ends("frozen", ends, {&cancel_, 2 * facts_.freeze_timeout_us});
  if (!met && met.error().code == Code::kBusy && !circle_.has_ended())
    return Error(Code::kBusy, "--together", "other members do not stand still").with_hint("a longer --timeout");
  CKPT_TRY(met);
  if (const auto unfit = unfit_connections(ends_, rank()); !unfit.empty()) {
    const ConnectionEnd& end = ends_[rank()][unfit[0]];
    return Error(Code::kBusy, "--together", end.local + " to " + end.remote + " is not of one instant at its two ends")
        .with_hint("try again");
  }
  return outside_connections(ends_, rank());
}

/// Of a wait with a limit: the trees here stand still no longer for those that have not come.
Error Together::too_late(Error error) const {
  if (error.code != Code::kBusy || circle_.has_ended()) return error;
  return Error(Code::kBusy, "--together",
               "other members were not done within --hold-limit, and this tree has stood still for long enough");
}

Result<void> Together::captured() {
  auto met = agree("captured", {&cancel_, facts_.hold_limit_us});
  return met ? Result<void>() : Result<void>(too_late(std::move(met).error()));
}

/// All know the same of it. Trees that stand still until all is written would do so for longer.
bool Together::takes_turns() const {
  return !facts_.ends_processes && std::find(first_.begin(), first_.end(), true) != first_.end() &&
         std::find(first_.begin(), first_.end(), false) != first_.end();
}

Result<void> Together::await_turn(bool may_wait) {
  has_waited_ = may_wait && takes_turns() && !first_[rank()];
  return has_waited_ ? first_durable() : Result<void>();
}

Result<void> Together::durable() {
  if (takes_turns() && !has_waited_) CKPT_TRY(first_durable());
  auto met = agree("durable", {&cancel_, hold_limit_us()});
  return met ? Result<void>() : Result<void>(too_late(std::move(met).error()));
}

namespace {

store::RankVariables variables_of(const std::string& pid) {
  constexpr uint64_t kMost = 8 << 20;
  auto text = io::read_file("/proc/" + pid + "/environ", kMost);
  return text ? store::rank_variables(*text) : store::RankVariables();
}

}  // namespace

/// A file that does not go with the job is refused while nothing has been touched.
Result<void> Together::place(const std::vector<int>& processes) {
  if (facts_.topology.empty()) return {};
  std::vector<store::RankVariables> variables;
  for (const int pid : processes) variables.push_back(variables_of(std::to_string(pid)));
  CKPT_TRY_ASSIGN(const auto answers, exchange({"place", {}, Json(store::training_ranks(variables, rank())).dump()},
                                               {&cancel_}));
  std::vector<std::vector<uint32_t>> ranks_of_parts;
  for (const std::string& answer : answers) {
    const Json ranks = Json::parse(answer, nullptr, false);
    const auto is_rank = [](const Json& one) { return one.is_number_unsigned(); };
    if (!ranks.is_array() || !std::all_of(ranks.begin(), ranks.end(), is_rank))
      return end_with(Error(Code::kBug, "--together", "a member says what no member says"));
    ranks_of_parts.push_back(ranks.get<std::vector<uint32_t>>());
  }
  auto placed = store::place_ranks(facts_.topology, ranks_of_parts, facts_.topology_name);
  if (!placed) return end_with(std::move(placed).error());
  ranks_ = std::move(*placed);
  first_ = store::first_replicas(ranks_, circle_.size());
  return {};
}

/// Of all members, the same for each.
Result<store::Job> Together::collect_parts(const fs::path& dir, const store::Manifest& manifest) {
  constexpr uint64_t kMostManifest = uint64_t{256} << 20;
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(dir / store::kManifestName, kMostManifest));
  store::JobMember mine;
  std::error_code ec;
  mine.host = manifest.host.hostname, mine.boot_id = manifest.host.boot_id;
  mine.folder = fs::weakly_canonical(facts_.folder, ec).string();
  mine.image_id = manifest.id;
  mine.manifest_sha256 = sha256_hex(as_bytes(text));
  mine.bytes = text.size();
  for (const store::StoredFile& file : manifest.files) mine.bytes += file.size;
  mine.pid = manifest.tree.root().pid, mine.arguments = manifest.tree.root().arguments;
  mine.frozen_us = manifest.stats.frozen_us;
  if (rank() < ends_.size()) mine.connections = ends_[rank()].size() - outside_connections(ends_, rank()).size();
  mine.variables = variables_of("self");
  for (const store::ProcessImage& process : manifest.tree.processes) {
    store::RankVariables variables = variables_of(std::to_string(process.pid));
    if (!variables.empty()) mine.processes.push_back({process.pid, std::move(variables)});
  }
  store::Job alone{job_, created_, manifest.kind, {mine}};
  const auto answers = exchange({"named", {}, write_part(alone)}, {nullptr, hold_limit_us()});
  if (!answers) return too_late(answers.error());
  store::Job out{job_, created_, manifest.kind, {}, ranks_};
  for (const std::string& answer : *answers) {
    CKPT_TRY_ASSIGN(store::JobMember member, read_part(answer));
    out.members.push_back(std::move(member));
  }
  return out;
}

/// Rank 0's is what counts; where the nodes have no common disk each folder gets one.
Result<void> Together::write_manifest(const store::Job& job, ProgressSink& notes) {
  Result<void> written = rank() == 0 ? store::write_job(facts_.folder, job) : Result<void>();
  // From here on nothing is undone but by an answer.
  auto answers = exchange({"committed", written}, {});
  if (!answers && !circle_.has_ended()) {
    return Error(Code::kIo, (facts_.folder / store::kJobName).string(),
                 "is of a job of which nobody here knows whether it is whole")
        .with_hint("it is where rank 0 has written this file")
        .with_cause(answers.error().text());
  }
  if (!answers) {
    const auto there = store::read_job(facts_.folder);
    if (rank() == 0 && there && there->id == job_) {
      ::unlink((facts_.folder / store::kJobName).c_str());
      (void)io::sync_dir(facts_.folder);
    }
    return std::move(answers).error();
  }
  circle_.end();
  if (rank() == 0 || store::looks_like_job(facts_.folder)) return {};
  Result<void> copied = store::write_job(facts_.folder, job);
  if (!copied && copied.error().code != Code::kUsage)
    notes.note(copied.error().text() + ": its description is on rank 0's host alone");
  return {};
}

Result<void> Together::commit(const fs::path& dir, const store::Manifest& manifest, ProgressSink& notes) {
  auto remove = [&] {
    const Cancel nothing_stops_it;
    // By force: nobody can need it yet, and the parts beside it are about to go, too.
    (void)store::remove_images({dir}, {.force = true}, notes, nothing_stops_it);
    ::rmdir(facts_.folder.c_str());  // if it was the only one
  };
  auto job = collect_parts(dir, manifest);
  if (!job) {
    remove();
    return std::move(job).error();
  }
  Result<void> written = write_manifest(*job, notes);
  if (!written && circle_.has_ended()) remove();
  return written;
}

/// One that does not hear from the others any more ends its own: the part of the one that was lost has ended with it.
Result<void> Together::released(Result<void> mine) {
  auto answers = exchange({"released", mine}, {});
  if (!answers && !circle_.has_ended()) {
    return Error(Code::kIo, "--together",
                 "another member was lost before all were let go: what was restored here is ended")
        .with_cause(answers.error().text());
  }
  circle_.end();
  return answers ? Result<void>() : Result<void>(std::move(answers).error());
}

}  // namespace ckpt::engine
