// squash: a chain of images made into one that needs no parent.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/dump_flags.h"
#include "cli/plural.h"
#include "cli/remote_images.h"
#include "lib/base/clock.h"
#include "lib/base/staged_dir.h"
#include "lib/base/text.h"
#include "lib/store/squash.h"

namespace ckpt::cli {

namespace {

using Json = nlohmann::ordered_json;

struct SquashFlags {
  std::string source, destination, hash = "xxh3";
  store::SquashOptions options;
  bool no_compress = false, dry_run = false, trust = false;
};

struct SquashOutcome {
  size_t images = 0;
  uint64_t bytes_before = 0, bytes_memory = 0, bytes_written = 0, us = 0;
  std::string id;
};

/// Refuses what `write` would; the staging folder goes away again.
Result<SquashOutcome> estimate(const SquashFlags& flags) {
  CKPT_TRY_ASSIGN(auto reader, store::ImageReader::open(flags.source, flags.options.trust));
  CKPT_TRY_ASSIGN(const StagedDir staged, StagedDir::create(flags.destination, flags.options.force));
  SquashOutcome out;
  out.images = reader->chain().size();
  out.bytes_before = reader->chain_bytes();
  for (const auto& block : reader->blocks())
    out.bytes_memory += static_cast<uint64_t>(__builtin_popcount(block.data_mask)) * store::kPageSize;
  return out;
}

Result<SquashOutcome> write(Context& context, const SquashFlags& flags) {
  Stopwatch watch;
  CKPT_TRY_ASSIGN(store::SquashReport report,
                  store::squash(flags.source, flags.destination, flags.options, context.progress, context.cancel));
  return SquashOutcome{report.images,
                       report.bytes_before,
                       report.totals.pages_data * store::kPageSize,
                       report.manifest.stats.bytes_written,
                       watch.elapsed_us(),
                       report.manifest.id};
}

Result<void> run_squash(Context& context, const SquashFlags& flags) {
  auto done = flags.dry_run ? estimate(flags) : write(context, flags);
  if (!done) return std::move(done).error();
  if (context.out.json()) {
    Json doc = {{"schema", "ckpt.squash/1"},
                {"event", flags.dry_run ? "dry-run" : "done"},
                {"source", flags.source},
                {"destination", flags.destination},
                {"dry_run", flags.dry_run},
                {"id", done->id},
                {"images", done->images},
                {"bytes_before", done->bytes_before},
                {"bytes_memory", done->bytes_memory},
                {"bytes_written", done->bytes_written},
                {"duration_us", done->us}};
    context.out.data(doc.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    return {};
  }
  const std::string chain = counted(done->images, "image") + " of " + human_bytes(done->bytes_before);
  if (flags.dry_run) {
    context.out.data(fmt::format("would write {} as one to {}: {} of memory before compression\n", chain,
                                 escape_for_terminal(flags.destination), human_bytes(done->bytes_memory)));
  } else {
    context.out.info(
        fmt::format("wrote {} as one of {} in {}", chain, human_bytes(done->bytes_written), human_us(done->us)));
  }
  return {};
}

}  // namespace

Command::Run add_squash(VerbOptions& app) {
  auto state = std::make_shared<SquashFlags>();
  app.add_saved("SRC", Saved::kImage, state->source, "The last image of the chain").type_name("PATH|URL").required();
  app.add_option("DST", state->destination, "The folder to write: it appears complete, or not at all").required();
  app.add_flag("--force", state->options.force, "Replace a folder that is not empty");
  app.add_flag("--no-compress", state->no_compress, "Store pages as they are");
  add_hash_flag(app, state->hash);
  app.add_flag("--trust", state->trust, "Also images that another user owns or may write: what they say becomes yours");
  app.add_option("-j,--jobs", state->options.workers, "Worker threads (default: one a core)").in_range(1, 1024);
  app.add_flag("-n,--dry-run", state->dry_run, "Say what would be written, with sizes");
  return [state](Context& context) {
    state->options.compress = !state->no_compress;
    state->options.sha256_pages = state->hash == "sha256";
    if (state->trust) state->options.trust = store::Trust::kAnybody;
    if (Result<void> trusted = check_trust(state->source, state->trust); !trusted) return trusted;
    return run_squash(context, *state);
  };
}

}  // namespace ckpt::cli
