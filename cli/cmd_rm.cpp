// rm: process images removed, unless another needs them.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/job_view.h"
#include "cli/retention.h"
#include "cli/store_flags.h"
#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/store/image.h"
#include "lib/store/remove.h"

namespace ckpt::cli {

namespace {

using Json = nlohmann::ordered_json;

struct RmFlags {
  std::vector<std::string> dirs;
  store::RemoveOptions options;
  schedule::RetentionRules rules;
  bool staging = false;
  StoreFlags store;
};

/// What would be removed was asked for; what has been is a report.
void tell(Console& out, bool dry_run, const std::string& what) {
  if (!dry_run) return out.info("removed " + what);
  if (!out.json()) out.data("would remove " + what + "\n");
}

Result<void> run_rm_staging(Context& context, const RmFlags& flags) {
  CKPT_TRY_ASSIGN(auto removed, store::remove_staging({flags.dirs.begin(), flags.dirs.end()}, flags.options.dry_run));
  Json folders = Json::array();
  for (const store::RemovedStaging& staging : removed) {
    folders.push_back({{"path", staging.dir.string()}, {"bytes", staging.bytes}});
    tell(context.out, flags.options.dry_run,
         fmt::format("{} ({})", escape_for_terminal(staging.dir.string()), human_bytes(staging.bytes)));
  }
  if (context.out.json()) {
    Json doc = {
        {"schema", "ckpt.rm/1"}, {"dry_run", flags.options.dry_run}, {"images", Json::array()}, {"staging", folders}};
    context.out.data(doc.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return {};
}

void report(Console& out, const std::vector<store::RemovedImage>& removed, bool dry_run) {
  Json images = Json::array();
  for (const store::RemovedImage& image : removed) {
    images.push_back(
        {{"path", image.dir.string()}, {"id", image.id}, {"bytes", image.bytes}, {"folder_left", image.folder_left}});
    tell(out, dry_run,
         fmt::format("{} ({}){}", escape_for_terminal(image.dir.string()), human_bytes(image.bytes),
                     image.folder_left ? "; the folder holds other files and stays" : ""));
  }
  if (!out.json()) return;
  Json doc = {{"schema", "ckpt.rm/1"}, {"dry_run", dry_run}, {"images", images}};
  out.data(doc.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

/// The DIRs are folders of images.
Result<void> run_rm_superfluous(Context& context, const RmFlags& flags) {
  if (flags.options.chain || flags.options.force || flags.staging)
    return fail(Code::kUsage, "--keep-last, --keep-every, --keep-daily", "do not go with --chain, --force, --staging");
  std::vector<store::RemovedImage> removed;
  for (const std::string& dir : flags.dirs) {
    if (store::ImageReader::looks_like_image(dir))
      return fail(Code::kUsage, dir, "is an image: what is kept is chosen among those in a folder");
  }
  Result<void> done;
  for (const std::string& dir : flags.dirs) {
    const RetentionRequest request{dir, flags.rules, schedule::Order::kTime, flags.options.dry_run};
    done = apply_retention(request, removed, context.progress, context.cancel);
    if (!done) break;
  }
  if (done || !removed.empty()) report(context.out, removed, flags.options.dry_run);
  return done;
}

Result<void> run_rm_store(Context& context, const RmFlags& flags) {
  if (flags.options.chain || flags.options.force || flags.staging)
    return fail(Code::kUsage, "--store", "does not go with --chain, --force, --staging: no name needs another");
  return remove_from_store(context, flags.store, {flags.dirs, flags.rules, flags.options.dry_run});
}

/// Its description goes first: what is left of it is no whole image then. Nothing goes where a part has to stay.
Result<void> remove_descriptions(const std::vector<std::filesystem::path>& jobs) {
  for (const std::filesystem::path& job : jobs) {
    const std::filesystem::path path = job / store::kJobName;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return sys_error(path.string(), "cannot be removed");
    CKPT_TRY(io::sync_dir(job));
  }
  return {};
}

Result<void> run_rm(Context& context, const RmFlags& flags) {
  std::vector<std::filesystem::path> dirs, jobs;
  for (const std::string& dir : flags.dirs) {
    if (!store::looks_like_job(dir)) {
      dirs.emplace_back(dir);
      continue;
    }
    if (flags.options.chain)
      return fail(Code::kUsage, dir, "is the image of a job: --chain is for images of processes");
    CKPT_TRY_ASSIGN(const auto parts, parts_here(dir, context));
    dirs.insert(dirs.end(), parts.begin(), parts.end());
    jobs.emplace_back(dir);
  }
  if (!jobs.empty() && !flags.options.dry_run) {
    store::RemoveOptions look = flags.options;
    look.dry_run = true;
    CKPT_TRY(store::remove_images(dirs, look, context.progress, context.cancel));
    CKPT_TRY(remove_descriptions(jobs));
  }
  CKPT_TRY_ASSIGN(auto removed, store::remove_images(dirs, flags.options, context.progress, context.cancel));
  for (const std::filesystem::path& job : jobs) {
    if (!flags.options.dry_run) ::rmdir(job.c_str());  // where nothing else is in it
  }
  report(context.out, removed, flags.options.dry_run);
  return {};
}

}  // namespace

Command::Run add_rm(VerbOptions& app) {
  auto state = std::make_shared<RmFlags>();
  app.add_saved("DIR", Saved::kImage, state->dirs, "Images to remove; with --store: names");
  app.add_flag("--chain", state->options.chain, "The parents of each, too");
  app.add_flag("--force", state->options.force, "Also what another image needs, which cannot be read then");
  app.add_flag("-n,--dry-run", state->options.dry_run, "Say what would be removed, with sizes");
  app.add_flag("--staging", state->staging,
               "The DIRs are folders of images: remove from them what killed runs left unfinished");
  add_retention_flags(app, state->rules);
  add_store_flags(app, state->store, false);
  return [state](Context& context) -> Result<void> {
    if (!state->store.place.empty()) return run_rm_store(context, *state);
    if (state->dirs.empty()) return argument_required("rm", "DIR");
    if (state->rules.any()) return run_rm_superfluous(context, *state);
    return state->staging ? run_rm_staging(context, *state) : run_rm(context, *state);
  };
}

}  // namespace ckpt::cli
