// ckpt convert SRC DST --to torch_dist
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/trace_flag.h"
#include "formats/convert/convert.h"
#include "lib/base/text.h"

namespace ckpt::cli {

namespace {

struct ConvertOptions {
  formats::ConvertRequest request;
  std::string source, destination, target;
  std::string trace;  ///< a file; empty: none
  std::vector<std::string> include, exclude;
  bool no_sync = false;
};

bool any_matches(const std::vector<std::string>& globs, std::string_view key) {
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_match(glob, key); });
}

std::string document(const ConvertOptions& options, const formats::ConvertReport& report) {
  nlohmann::json files = nlohmann::json::array();
  for (const auto& [name, size] : report.files) files.push_back({{"name", name}, {"bytes", size}});
  const nlohmann::json doc = {{"schema", "ckpt.convert/1"},
                              {"source", options.source},
                              {"destination", options.destination},
                              {"from", report.source_format},
                              {"to", options.target},
                              {"dry_run", options.request.dry_run},
                              {"tensors", report.tensors},
                              {"objects", report.objects},
                              {"shards", report.shards},
                              {"excluded", report.excluded},
                              {"payload_bytes", report.payload_bytes},
                              {"total_bytes", report.total_bytes},
                              {"duration_us", report.duration_us},
                              {"durable", options.request.durable && !options.request.dry_run},
                              {"files", files},
                              {"notes", report.notes}};
  return doc.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void show_plan(Console& out, const formats::ConvertReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, size] : report.files) rows.push_back({name, human_bytes(size)});
  out.table({"file", "size"}, rows, {1});
}

std::string summary(const ConvertOptions& options, const formats::ConvertReport& report) {
  std::string what = fmt::format("{} tensors in {} shards, {} objects", report.tensors, report.shards, report.objects);
  if (report.excluded > 0) what += fmt::format(", {} keys left out", report.excluded);
  if (options.request.dry_run) {
    return fmt::format("would write {} to {}: {}", human_bytes(report.total_bytes), escape_for_terminal(options.destination), what);
  }
  const double seconds = static_cast<double>(std::max<uint64_t>(1, report.duration_us)) / 1e6;
  return fmt::format("wrote {} in {} ({}/s): {}", human_bytes(report.total_bytes), human_us(report.duration_us),
                     human_bytes(static_cast<uint64_t>(static_cast<double>(report.total_bytes) / seconds)), what);
}

Result<void> run_convert(const ConvertOptions& options, Context& context) {
  auto work = [&] { return formats::convert(options.request, context.progress, context.cancel); };
  CKPT_TRY_ASSIGN(formats::ConvertReport report, traced(options.trace, "convert", context, work));
  for (const std::string& note : report.notes) context.out.info("note: " + escape_for_terminal(note));
  if (context.out.json()) context.out.data(document(options, report));
  else if (options.request.dry_run) show_plan(context.out, report);
  context.out.info(summary(options, report));
  return {};
}

}  // namespace

Command::Run add_convert(CLI::App& app) {
  auto state = std::make_shared<ConvertOptions>();
  ConvertOptions& o = *state;
  app.add_option("SRC", o.source, "The checkpoint to read: its format is told by its content")->required();
  app.add_option("DST", o.destination, "The folder to write: it appears complete, or not at all")->required();
  app.add_option("--to", o.target, "The format to write: torch_dist")->required()->check(CLI::IsMember({"torch_dist"}));
  app.add_option("--shard-size", o.request.plan.shard_size, "Cut tensors anew, along the leading axes, into shards of at most this size (64MiB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  app.add_option("-j,--jobs", o.request.workers, "Workers; the result does not depend on it (default: one per core)")
      ->check(CLI::Range(1u, 1024u));
  app.add_option("--files", o.request.plan.files, "Data files to spread the shards over (default: one per 256 MiB, 64 at most)")
      ->check(CLI::Range(1u, 100'000u));
  app.add_option("--max-memory", o.request.plan.max_memory, "Memory to stay under (default: 256MiB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  app.add_option("--include", o.include, "Only keys that match one of these globs")->allow_extra_args(false);
  app.add_option("--exclude", o.exclude, "No keys that match one of these globs")->allow_extra_args(false);
  app.add_flag("-n,--dry-run", o.request.dry_run, "Say what would be written, with sizes");
  app.add_flag("--force", o.request.force, "Replace a destination that is not empty");
  app.add_flag("--no-sync", o.no_sync, "Do not wait until the result is on disk");
  add_trace_flag(app, o.trace);
  return [state](Context& context) {
    ConvertOptions& options = *state;
    options.request.source = options.source;
    options.request.destination = options.destination;
    options.request.durable = !options.no_sync;
    options.request.plan.wanted = [&options](std::string_view key) {
      return (options.include.empty() || any_matches(options.include, key)) && !any_matches(options.exclude, key);
    };
    return run_convert(options, context);
  };
}

}  // namespace ckpt::cli
