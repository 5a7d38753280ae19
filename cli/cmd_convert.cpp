// ckpt convert SRC DST --to FORMAT
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/model_view.h"
#include "cli/plural.h"
#include "cli/trace_flag.h"
#include "formats/format.h"
#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/model/convert/convert.h"
#include "lib/model/convert/rank.h"
#include "lib/remote/upload.h"
#include "lib/remote/url.h"

namespace ckpt::cli {

namespace {

struct ConvertOptions {
  model::ConvertRequest request;
  std::string source, destination;
  std::string trace;  ///< a file; empty: none
  std::vector<std::string> dtypes, grid;
  std::string map, part;
  bool no_sync = false;
  bool launched = false;  ///< a launcher started all parts: to it a part that is done is done
};

std::string document(const ConvertOptions& options, const model::ConvertReport& report) {
  nlohmann::json files = nlohmann::json::array();
  for (const auto& [name, size] : report.files) files.push_back({{"name", name}, {"bytes", size}});
  nlohmann::ordered_json phases = nlohmann::ordered_json::object();
  for (const auto& [name, us] : report.phases_us) phases[name] = us;
  nlohmann::json skipped = nlohmann::json::array();
  for (const tensor::Unreadable& entry : report.skipped) skipped.push_back({{"key", entry.key}, {"why", entry.why}});
  const nlohmann::json doc = {{"schema", "ckpt.convert/1"},
                              {"event", options.request.dry_run ? "dry-run" : report.finished ? "done" : "part-done"},
                              {"source", options.source},
                              {"destination", options.destination},
                              {"from", report.source_format},
                              {"to", options.request.to},
                              {"dry_run", options.request.dry_run},
                              {"tensors", report.tensors},
                              {"objects", report.objects},
                              {"shards", report.shards},
                              {"excluded", report.excluded},
                              {"payload_bytes", report.payload_bytes},
                              {"total_bytes", report.total_bytes},
                              {"duration_us", report.duration_us},
                              {"phases_us", phases},
                              {"kept_files", report.kept_files},
                              {"finished", report.finished},
                              {"was_there", report.was_there},
                              {"verified", report.verified},
                              {"durable", options.request.durable && !options.request.dry_run},
                              {"files", files},
                              {"skipped", skipped},
                              {"siblings", report.siblings},
                              {"notes", report.notes}};
  return doc.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void show_plan(Console& out, const model::ConvertReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, size] : report.files) rows.push_back({name, human_bytes(size)});
  out.table({"file", "size"}, rows, {1});
}

std::string summary(const ConvertOptions& options, const model::ConvertReport& report) {
  std::string what = fmt::format("{} in {}, {}", counted(report.tensors, "tensor"), counted(report.shards, "shard"),
                                 counted(report.objects, "object"));
  if (report.excluded > 0) what += fmt::format(", {} left out", counted(report.excluded, "key"));
  if (options.request.dry_run) {
    return fmt::format("would write {} to {}: {}", human_bytes(report.total_bytes),
                       escape_for_terminal(options.destination), what);
  }
  if (report.was_there)
    return escape_for_terminal(options.destination) + " is there already, with the files and sizes that this gives";
  if (!report.finished) {
    return fmt::format("part {} of {} is done, others are to come", options.request.part.index,
                       options.request.part.count);
  }
  if (report.kept_files > 0) what += fmt::format(", {} kept of an earlier run", counted(report.kept_files, "file"));
  if (report.verified) what += ", compared with the source";
  const double seconds = static_cast<double>(std::max<uint64_t>(1, report.duration_us)) / 1e6;
  return fmt::format("wrote {} in {} ({}/s): {}", human_bytes(report.total_bytes), human_us(report.duration_us),
                     human_bytes(static_cast<uint64_t>(static_cast<double>(report.total_bytes) / seconds)), what);
}

Result<void> run_convert(const ConvertOptions& options, Context& context) {
  auto work = [&] { return model::convert(options.request, context.progress, context.cancel); };
  CKPT_TRY_ASSIGN(model::ConvertReport report, traced(options.trace, "convert", context, work));
  for (const std::string& note : report.notes) context.out.info("note: " + escape_for_terminal(note));
  if (context.out.json()) context.out.data(document(options, report));
  else if (options.request.dry_run) show_plan(context.out, report);
  context.out.info(summary(options, report));
  // mpirun and torchrun end all other parts when one ends with another status than 0.
  if (!report.finished && !options.launched) context.exit_status = exit_code(Code::kPartial);
  return {};
}

/// A destination that is a URL. What would have to be on this host is refused by name.
Result<void> prepare_upload(ConvertOptions& options, Context& context) {
  if (options.no_sync)
    return fail(Code::kUsage, "--no-sync", "is for folders of this host: an object is durable at once");
  const std::string& url = options.destination;
  const std::string source = remote::with_urls(options.source).value_or(options.source);
  if (remote::lies_within(url, source)) return fail(Code::kUsage, url, "lies inside the source");
  if (remote::lies_within(source, url)) return fail(Code::kUsage, url, "holds the source");
  options.request.elsewhere = [&options, &context](
                                  bool one_file,
                                  const std::string& plan) -> Result<std::unique_ptr<io::StagedOutput>> {
    const remote::Upload::Options how{one_file, options.request.force, plan};
    CKPT_TRY_ASSIGN(std::unique_ptr<io::StagedOutput> out,
                    remote::Upload::open(options.destination, how, &context.cancel));
    return out;
  };
  return {};
}

/// Texts of flags to what they mean.
Result<void> prepare(ConvertOptions& options, Context& context) {
  model::ConvertRequest& request = options.request;
  request.source = options.source;
  request.destination = options.destination;
  request.durable = !options.no_sync;
  for (const std::string& text : options.dtypes) {
    CKPT_TRY_ASSIGN(auto rule, model::parse_dtype_rule(text));
    request.select.dtypes.push_back(std::move(rule));
  }
  for (const std::string& text : options.grid) {
    CKPT_TRY_ASSIGN(tensor::GridRule rule, tensor::parse_grid_rule(text));
    request.write.grid.rules.push_back(std::move(rule));
  }
  if (!options.map.empty()) {
    CKPT_TRY_ASSIGN(UniqueFd map, io::open_file(options.map, O_RDONLY));  // which may be a pipe: <(jq ...)
    CKPT_TRY_ASSIGN(request.select.map, io::read_all(map.get(), 64 << 20, options.map));
  }
  if (!options.part.empty()) {
    auto environment = [](const char* name) -> std::optional<std::string> {
      const char* value = std::getenv(name);
      return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
    };
    CKPT_TRY_ASSIGN(const model::Rank rank, model::find_rank(options.part, environment));
    request.part = rank.part;
    request.resume = true;
    if (!rank.found_in.empty()) {
      options.launched = true;
      context.out.info(fmt::format("part {} of {}, by {}", rank.part.index, rank.part.count, rank.found_in));
    }
  }
  if (options.no_sync && (request.resume || !options.part.empty())) {
    return fail(Code::kUsage, "--no-sync",
                "does not go with --resume and --part: what they go on from must be on disk");
  }
  if (remote::is_url(options.destination)) return prepare_upload(options, context);
  return {};
}

void add_selection(VerbOptions& app, ConvertOptions& o) {
  model::SelectRequest& select = o.request.select;
  app.add_option("--include", select.include, "Only keys that match one of these globs").one_value_each();
  app.add_option("--exclude", select.exclude, "No keys that match one of these globs").one_value_each();
  app.add_flag("--skip-unreadable", select.skip_unreadable, "Leave out what cannot be read, and name it");
  app.add_flag("--tensors-only", select.tensors_only, "Leave out objects and the common state");
  app.add_flag("--no-optimizer", select.no_optimizer, "Leave out optimizer state");
  app.add_flag("--unflatten", select.unflatten,
               "Refuse optimizer tensors whose original shapes are not known; the others get them anyway");
  app.add_option("--rename", select.renames, "REGEX=REPLACEMENT, for every key; \\1 stands for a group")
      .one_value_each();
  app.add_option("--map", o.map, "A file with a JSON object of old key to new key").type_name("FILE");
  app.add_option("--dtype", o.dtypes,
                 "GLOB=TYPE: convert elements, rounding to the nearest; refused where values would be lost")
      .one_value_each();
  app.add_option("--shape", select.shapes,
                 "GLOB=AxB: another shape, _ for a length that stays; wants --allow-shape-mismatch")
      .one_value_each();
  app.add_flag("--allow-shape-mismatch", select.allow_shape_mismatch,
               "Fill what a new shape adds with zeros, cut off what it lacks");
}

void add_layout(VerbOptions& app, model::ConvertRequest& request, std::vector<std::string>& grid) {
  formats::WriteOptions& write = request.write;
  app.add_option("--shard-size", write.grid.shard_size,
                 "Cut tensors anew, along the leading axes, into shards of at most this size (64MiB)")
      .as_size()
      .positive();
  app.add_option("--shard-grid", grid,
                 "GLOB=AxB: cut tensors anew, into A parts along the first axis, B along the second")
      .one_value_each();
  app.add_option("--files", write.files, "Data files to spread the tensors over (default: by size)")
      .in_range(1, 100'000);
  app.add_option("--file-size", write.file_size, "The most that a data file is to hold (safetensors: 5 GB)")
      .as_size()
      .positive();
}

std::vector<std::string> names_of_writers() {
  std::vector<std::string> out;
  for (const formats::Writer& writer : formats::writers()) out.emplace_back(writer.name);
  return out;
}

}  // namespace

Command::Run add_convert(VerbOptions& app) {
  auto state = std::make_shared<ConvertOptions>();
  ConvertOptions& o = *state;
  app.add_saved("SRC", Saved::kCheckpoint, o.source, "The checkpoint to read: its format is told by its content")
      .type_name("PATH|URL")
      .required();
  app.add_option("DST", o.destination,
                 "What to write: a folder, or a file by its name; it appears complete, or not at all")
      .type_name("PATH|URL")
      .required();
  app.add_option("--to", o.request.to, fmt::format("The format to write: {}", fmt::join(names_of_writers(), ", ")))
      .required()
      .one_of(names_of_writers());
  add_from(app, o.request.from);
  add_selection(app, o);
  add_layout(app, o.request, o.grid);
  app.add_option("-j,--jobs", o.request.workers, "Workers; the result does not depend on it (default: one per core)")
      .in_range(1, 1024);
  add_max_memory(app, o.request.write.max_memory);
  app.add_option("--mcore", o.request.write.mcore,
                 "The release of Megatron Core that is to read it (default: auto, rows where the source has rows)")
      .type_name("VERSION");
  app.add_flag("-n,--dry-run", o.request.dry_run, "Say what would be written, with sizes");
  app.add_flag("--verify", o.request.verify,
               "Read the result again and compare it with the source before it gets its name");
  app.add_flag("--allow-damage", o.request.allow_damage,
               "Go on where a CRC differs or an object lacks parts, and say so");
  app.add_flag("--trust-pickles", o.request.trust_pickles, "Pass on pickles that run code when they are loaded");
  app.add_flag("--copy-siblings", o.request.copy_siblings,
               "Copy the files beside the checkpoint that are no part of it, too");
  app.add_flag("--resume", o.request.resume, "Go on where a conversion that was killed stopped, file by file");
  app.add_option("--part", o.part,
                 "INDEX/COUNT: write this part only, the last one finishes; auto: as srun, mpirun, torchrun say")
      .type_name("PART");
  app.add_flag("--force", o.request.force, "Replace a destination that is there");
  app.add_flag("--no-sync", o.no_sync, "Do not wait until the result is on disk");
  add_trace_flag(app, o.trace);
  return [state](Context& context) -> Result<void> {
    CKPT_TRY(prepare(*state, context));
    return run_convert(*state, context);
  };
}

}  // namespace ckpt::cli
