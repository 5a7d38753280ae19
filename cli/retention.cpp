#include "cli/retention.h"

#include "lib/schedule/saves.h"
#include "lib/store/find_images.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

void add_retention_flags(VerbOptions& app, schedule::RetentionRules& rules) {
  app.add_option("--keep-last", rules.keep_last, "Keep the newest N images").in_range(1, 1'000'000'000).type_name("N");
  app.add_option("--keep-every", rules.keep_every, "Keep each K-th image, by the number in its name")
      .in_range(1, 1'000'000'000)
      .type_name("K");
  app.add_option("--keep-daily", rules.keep_daily, "Keep the last image of each of the newest D days")
      .in_range(1, 1'000'000)
      .type_name("D");
}

Result<std::vector<schedule::KnownSave>> images_in(const fs::path& folder) {
  std::error_code ec;
  const fs::path here = fs::canonical(folder, ec);
  if (ec) return fail(Code::kNotFound, folder.string(), "there is no such folder");
  std::vector<schedule::KnownSave> out;
  fs::directory_iterator it(here, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    std::error_code gone;
    const std::string name = it->path().filename().string();
    if (name.starts_with('.') || it->is_symlink(gone) || !store::ImageReader::looks_like_image(it->path())) continue;
    auto manifest = store::read_manifest(it->path());
    if (!manifest) continue;
    std::string parent;
    if (!manifest->parent_id.empty()) {
      const fs::path its = fs::canonical(it->path() / manifest->parent_path, gone);
      if (!gone && its.parent_path() == here) parent = its.filename().string();
    }
    out.push_back({name, manifest->created, parent, schedule::step_of(name)});
  }
  if (ec) return sys_error(ec.value(), folder.string(), "cannot be listed");
  return out;
}

Result<void> apply_retention(const RetentionRequest& request, std::vector<store::RemovedImage>& removed,
                             ProgressSink& notes, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(std::vector<schedule::KnownSave> saves, images_in(request.folder));
  std::vector<fs::path> dirs;
  for (const std::string& name : schedule::superfluous(std::move(saves), request.rules, request.order))
    dirs.push_back(request.folder / name);
  if (dirs.empty()) return {};
  store::RemoveOptions options;
  options.dry_run = request.dry_run;
  auto is_needed = [](const Error& error) { return error.code == Code::kUsage || error.code == Code::kBusy; };
  auto all = store::remove_images(dirs, options, notes, cancel);
  if (all) return removed.insert(removed.end(), all->begin(), all->end()), Result<void>();
  if (!is_needed(all.error())) return std::move(all).error();
  // An image elsewhere leans on one of them, or is about to: the others go one by one, children before their parents.
  for (auto dir = dirs.rbegin(); dir != dirs.rend(); ++dir) {
    auto one = store::remove_images({*dir}, options, notes, cancel);
    if (one)
      removed.insert(removed.end(), one->begin(), one->end());
    else if (is_needed(one.error()))
      notes.note("kept " + one.error().text());
    else
      return std::move(one).error();
  }
  return {};
}

}  // namespace ckpt::cli
