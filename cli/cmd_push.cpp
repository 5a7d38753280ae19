// push, pull and gc: images and checkpoints into a store, out of it, and what nothing needs out of it for good.
#include <fmt/format.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/plural.h"
#include "cli/store_flags.h"
#include "formats/format.h"
#include "lib/base/duration.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/remote/mounted.h"
#include "lib/repository/collect.h"
#include "lib/repository/pull.h"
#include "lib/repository/push.h"
#include "lib/repository/source.h"
#include "lib/store/image.h"
#include "lib/store/job.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

struct PushFlags {
  StoreFlags store;
  std::string path;
  repository::PushOptions options;
};

std::string rate(uint64_t bytes, uint64_t us) {
  return us == 0 ? ""
                 : fmt::format(" ({}/s)", human_bytes(static_cast<uint64_t>(static_cast<double>(bytes) * 1e6 /
                                                                            static_cast<double>(us))));
}

/// Whatever they are called and whether or not they are there yet; a URL lies in no folder.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  std::error_code ec;
  if (remote::with_urls(inner.string()) || remote::with_urls(outer.string()) || !fs::is_directory(outer, ec))
    return false;
  for (fs::path at = fs::weakly_canonical(fs::absolute(inner, ec), ec); !at.empty(); at = at.parent_path()) {
    if (fs::equivalent(at, outer, ec)) return true;
    if (at == at.parent_path()) break;
  }
  return false;
}

/// One that is not there is made once it is known that there is something to put into it.
Result<std::unique_ptr<repository::Repository>> store_for(Context& context, const PushFlags& flags,
                                                          const fs::path& path) {
  auto there = open_store(context, flags.store, false);
  if (there || there.error().code != Code::kNotFound) return there;
  CKPT_TRY(repository::find_source(path, context.cancel));
  return open_store(context, flags.store, true);
}

Result<void> run_push(Context& context, const PushFlags& flags) {
  repository::PushOptions options = flags.options;
  fs::path path = flags.path;
  if (!path.has_filename()) path = path.parent_path();
  if (options.name.empty()) {
    std::error_code ec;
    options.name = path.filename() == "." || path.filename() == ".." ? fs::canonical(path, ec).filename().string()
                                                                     : path.filename().string();
  }
  if (!store::ImageReader::looks_like_image(path) && !store::looks_like_job(path)) {
    std::error_code ec;
    if (!fs::exists(path, ec)) return fail(Code::kNotFound, flags.path, "there is no such file or folder");
    options.format = formats::format_name_of(path);
    if (options.format.empty())
      return Error(Code::kUnsupported, flags.path, "is neither a process image nor a checkpoint that ckpt knows")
          .with_hint("ckpt list shows what lies below a folder");
  }
  CKPT_TRY(repository::check_name(options.name));
  if (lies_in(flags.store.place, path))
    return fail(Code::kUsage, flags.store.place, "lies in what is to be pushed, which would change while it is read");
  CKPT_TRY_ASSIGN(const auto store, store_for(context, flags, path));
  CKPT_TRY_ASSIGN(const repository::PushReport report, repository::push(*store, path, options, context.progress));
  if (context.out.json()) {
    JsonWriter json;
    json.open('{');
    json.members("schema", "ckpt.push/1", "store", flags.store.place, "name", report.ref.name, "kind", report.ref.kind,
                 "format", report.ref.format, "images", report.ref.images, "files", report.ref.files, "bytes",
                 report.ref.bytes, "chunks", report.chunks, "new_chunks", report.new_chunks, "new_bytes",
                 report.new_bytes, "stored_bytes", report.stored, "duration_us", report.us);
    context.out.data(std::move(json).finish());
  }
  context.out.info(fmt::format("pushed {}: {} in {}{}; the store has {} more", report.ref.name,
                               human_bytes(report.ref.bytes), human_us(report.us), rate(report.ref.bytes, report.us),
                               human_bytes(report.stored)));
  return {};
}

struct PullFlags {
  StoreFlags store;
  std::string name;
  repository::PullOptions options;
};

Result<void> run_pull(Context& context, const PullFlags& flags) {
  if (lies_in(flags.options.dir, flags.store.place))
    return fail(Code::kUsage, flags.options.dir.string(), "lies in the store");
  CKPT_TRY_ASSIGN(const auto store, open_store(context, flags.store, false));
  CKPT_TRY_ASSIGN(const repository::PullReport report,
                  repository::pull(*store, flags.name, flags.options, context.progress));
  if (context.out.json()) {
    JsonWriter json;
    json.open('{');
    json.members("schema", "ckpt.pull/1", "store", flags.store.place, "name", report.ref.name, "path",
                 report.path.string(), "bytes", report.ref.bytes, "fetched_bytes", report.fetched, "reused_bytes",
                 report.reused, "duration_us", report.us);
    context.out.data(std::move(json).finish());
  }
  context.out.info(fmt::format("pulled {} to {}: {} in {}{}, {} of them were there", report.ref.name,
                               escape_for_terminal(report.path.string()), human_bytes(report.ref.bytes),
                               human_us(report.us), rate(report.ref.bytes, report.us), human_bytes(report.reused)));
  return {};
}

constexpr uint64_t kLeastGrace = 2 * 3600;

struct GcFlags {
  StoreFlags store;
  repository::CollectOptions options;
  std::string grace = "24h";
};

Result<void> run_gc(Context& context, const GcFlags& flags) {
  repository::CollectOptions options = flags.options;
  CKPT_TRY_ASSIGN(const uint64_t grace_us, parse_duration(flags.grace, "--grace"));
  options.grace_s = grace_us / 1'000'000;
  if (options.grace_s < kLeastGrace)
    return fail(Code::kUsage, "--grace", "has to be 2h at least: a push that is alive may be silent for an hour");
  CKPT_TRY_ASSIGN(const auto store, open_store(context, flags.store, false));
  CKPT_TRY_ASSIGN(const repository::CollectReport report,
                  repository::collect_garbage(*store, options, context.progress));
  if (context.out.json()) {
    JsonWriter json;
    json.open('{');
    json.members("schema", "ckpt.gc/1", "store", flags.store.place, "dry_run", options.dry_run, "removed_packs",
                 report.removed_packs, "removed_bytes", report.removed_bytes, "rewritten_packs", report.rewritten_packs,
                 "moved_bytes", report.moved_bytes, "waiting_packs", report.waiting_packs, "waiting_bytes",
                 report.waiting_bytes, "rescued_packs", report.rescued_packs, "dead_pushes", report.dead_pushes,
                 "waits_for", report.waits_for);
    context.out.data(std::move(json).finish());
  }
  const std::string text = fmt::format("{} of {}; {} of {} rewritten", human_bytes(report.removed_bytes),
                                       counted(report.removed_packs, "pack"), human_bytes(report.moved_bytes),
                                       counted(report.rewritten_packs, "pack"));
  if (!options.dry_run)
    context.out.info("removed " + text);
  else if (!context.out.json())
    context.out.data("would remove " + text + "\n");
  for (const std::string& who : report.waits_for)
    context.out.info(fmt::format("{} of {} stay for now: {} is under way", human_bytes(report.waiting_bytes),
                                 counted(report.waiting_packs, "pack"), escape_for_terminal(who)));
  return {};
}

}  // namespace

Command::Run add_push(VerbOptions& app) {
  auto flags = std::make_shared<PushFlags>();
  app.add_saved("path", Saved::kEither, flags->path, "A process image, with its parents, or a model checkpoint")
      .type_name("PATH|URL")
      .required();
  add_store_flags(app, flags->store, true);
  app.add_option("--name", flags->options.name, "Its name in the store; without it that of the file or folder")
      .type_name("NAME");
  app.add_flag("--force", flags->options.force, "Take the place of what has the name");
  return [flags](Context& context) { return run_push(context, *flags); };
}

Command::Run add_pull(VerbOptions& app) {
  auto flags = std::make_shared<PullFlags>();
  app.add_option("name", flags->name, "What to fetch").type_name("NAME").required();
  add_store_flags(app, flags->store, true);
  app.add_option("--dir", flags->options.dir,
                 "The folder that it becomes, or that gets the file or the chain of images")
      .type_name("DIR")
      .required();
  app.add_flag("--force", flags->options.force,
               "Take the place of what is in DIR, such as an earlier version: only what that lacks is fetched");
  app.add_flag("--trust", flags->options.trust,
               "Also an image from a store without a key that others may write (ckpt-security(7))");
  return [flags](Context& context) { return run_pull(context, *flags); };
}

Command::Run add_gc(VerbOptions& app) {
  auto flags = std::make_shared<GcFlags>();
  add_store_flags(app, flags->store, true);
  app.add_flag("-n,--dry-run", flags->options.dry_run, "Say what would be removed, with sizes");
  app.add_option("--grace", flags->grace, "A push on another host that said nothing for so long is dead")
      .type_name("TIME")
      .shows_default();
  return [flags](Context& context) { return run_gc(context, *flags); };
}

}  // namespace ckpt::cli
