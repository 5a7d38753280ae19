// `ckpt check`: can this host, this process do it, and what is missing.
#include <fmt/format.h>
#include <linux/capability.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "lib/base/text.h"
#include "lib/capture/inventory.h"
#include "lib/proc/host.h"
#include "lib/proc/pagemap.h"
#include "lib/proc/userfault.h"

namespace ckpt::cli {

namespace {

struct Feature {
  std::string name;
  bool present = false;
  std::string serves;  ///< what it is for, and what happens without it
};

std::vector<Feature> host_features() {
  auto pagemap = proc::Pagemap::open(::getpid());
  auto host = proc::read_host();
  bool tiles = host && (host->xcr0 >> 18 & 1) != 0;
  bool restore = proc::has_capability(CAP_CHECKPOINT_RESTORE) || proc::has_capability(CAP_SYS_ADMIN);
  return {
      {"PAGEMAP_SCAN", pagemap && pagemap->can_scan(), "copying only what was written (Linux 6.7); without it every dump is a full copy"},
      {"CAP_SYS_PTRACE", proc::has_capability(CAP_SYS_PTRACE), "processes of other users"},
      {"CAP_CHECKPOINT_RESTORE", restore, "restore: the old pid, the old memory bounds"},
      {"CAP_SYS_RESOURCE", proc::has_capability(CAP_SYS_RESOURCE), "restore: raising hard limits; without it they stay as they are"},
      {"AMX tiles", tiles, "processes that hold them can only be restored where they are"},
  };
}

nlohmann::ordered_json to_json(const std::vector<Feature>& features) {
  auto out = nlohmann::ordered_json::array();
  for (const Feature& f : features) out.push_back({{"name", f.name}, {"present", f.present}, {"serves", f.serves}});
  return out;
}

Result<std::vector<capture::Blocker>> blockers_of(int pid, bool shell_job) {
  CKPT_TRY_ASSIGN(UniqueFd pidfd, proc::open_pidfd(pid));
  CKPT_TRY_ASSIGN(capture::Inventory inventory, capture::take_inventory(pid, pidfd.get(), {shell_job, nullptr}));
  return inventory.blockers;
}

void print(Context& context, const std::vector<Feature>& features, int pid, const std::vector<capture::Blocker>& blockers) {
  if (context.out.json()) {
    nlohmann::ordered_json doc = {{"schema", "ckpt.check/1"}, {"host", to_json(features)}};
    if (pid != 0) {
      doc["pid"] = pid;
      doc["blockers"] = nlohmann::ordered_json::array();
      for (const auto& b : blockers) doc["blockers"].push_back({{"subject", b.subject}, {"what", b.what}, {"flag", b.flag}});
    }
    context.out.data(doc.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return;
  }
  if (pid == 0) {
    std::vector<std::vector<std::string>> rows;
    for (const Feature& f : features) rows.push_back({f.name, f.present ? "yes" : "no", f.serves});
    context.out.table({"FEATURE", "HERE", "FOR"}, rows);
    return;
  }
  if (blockers.empty()) context.out.data(escape_for_terminal(fmt::format("{}: nothing stands in the way of a dump", proc::describe_pid(pid))) + "\n");
  std::vector<std::vector<std::string>> rows;
  for (const auto& b : blockers) rows.push_back({b.subject, b.what, b.flag.empty() ? "-" : b.flag});
  if (!rows.empty()) context.out.table({"WHERE", "WHAT", "ALLOWED BY"}, rows);
}

struct Flags {
  int pid = 0;
  bool shell_job = false;
};

}  // namespace

Command::Run add_check(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  app.add_option("-p,--pid,-t,--tree", flags->pid, "A process: list everything in it that would block a dump")->check(CLI::PositiveNumber);
  app.add_flag("--shell-job", flags->shell_job, "As for dump: terminals and pipes of the surroundings are no obstacle");
  return [flags](Context& context) -> Result<void> {
    std::vector<capture::Blocker> blockers;
    if (flags->pid != 0) {
      CKPT_TRY_ASSIGN(blockers, blockers_of(flags->pid, flags->shell_job));
    }
    print(context, host_features(), flags->pid, blockers);
    if (blockers.empty()) return {};
    return fail(Code::kAnswerNo, "process " + proc::describe_pid(flags->pid), fmt::format("{} obstacle{}", blockers.size(), blockers.size() == 1 ? "" : "s"));
  };
}

}  // namespace ckpt::cli
