// `ckpt inspect PATH [GLOB...]`: what is in it.
#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/inspect_image.h"
#include "cli/inspect_model.h"
#include "cli/job_view.h"
#include "cli/model_view.h"
#include "formats/common_state.h"
#include "lib/base/text.h"
#include "lib/store/image.h"
#include "lib/tensor/read.h"

namespace ckpt::cli {

namespace {

View select(const tensor::Catalog& catalog, const std::vector<std::string>& globs) {
  View out;
  out.catalog = &catalog;
  for (const tensor::Tensor& t : catalog.tensors) {
    if (!matches_any(globs, t.key)) continue;
    out.tensors.push_back(&t);
    out.bytes += t.bytes();
    out.elements += tensor::element_count(t.shape).value_or(0);
    out.shards += t.shards.size();
  }
  for (const tensor::Object& object : catalog.objects) {
    if (matches_any(globs, object.key)) out.objects.push_back(&object);
  }
  return out;
}

/// The views that exclude each other, by their flags.
Result<void> check_views(const InspectOptions& options) {
  std::vector<std::string> views;
  auto add = [&](bool given, const char* flag) {
    if (given) views.push_back(flag);
  };
  add(options.common, "--common");
  add(options.tree, "--tree");
  add(options.files, "--files");
  add(!options.shards.empty(), "--shards");
  add(!options.group_by.empty(), "--group-by");
  add(!options.diff.empty() && options.html.empty(), "--diff");
  add(!options.html.empty(), "--html");
  if (views.size() > 1)
    return fail(Code::kUsage, "", fmt::format("{} cannot be asked for at once", fmt::join(views, " and ")));
  if (options.stats && !views.empty() && views[0] != "--html")
    return fail(Code::kUsage, "", "--stats goes with the table and with --html");
  if (!options.tolerance.empty() && options.diff.empty()) return fail(Code::kUsage, "", "--tolerance is for --diff");
  return check_columns(options);
}

/// Whether the view needs the places of the data, and not the metadata alone.
Result<tensor::Catalog> open_for(const InspectOptions& options) {
  if (options.stats || !options.shards.empty() || !options.diff.empty()) return open_data(options.path, options.from);
  CKPT_TRY_ASSIGN(tensor::Catalog catalog, open_metadata(options.path, options.from));
  const bool placed = std::all_of(catalog.tensors.begin(), catalog.tensors.end(), [](const tensor::Tensor& t) {
    return std::all_of(t.shards.begin(), t.shards.end(),
                       [](const tensor::Shard& s) { return s.where.length + s.item.length != 0; });
  });
  if ((options.files || !options.html.empty()) && !placed) return open_data(options.path, options.from);
  return catalog;
}

Result<void> add_stats(Context& context, View& view, uint64_t max_memory) {
  for (const tensor::Tensor* t : view.tensors) CKPT_TRY(tensor::check_readable(*view.catalog, *t));
  model::StatsOptions how;
  how.progress = &context.progress;
  how.cancel = &context.cancel;
  how.max_memory = max_memory;
  CKPT_TRY_ASSIGN(view.stats, model::compute_stats(*view.catalog, view.tensors, how));
  return {};
}

Result<void> inspect_image_as(Context& context, const InspectOptions& options) {
  const std::pair<bool, const char*> of_models[] = {{options.common, "--common"},
                                                    {options.tree, "--tree"},
                                                    {options.files, "--files"},
                                                    {!options.diff.empty(), "--diff"},
                                                    {!options.shards.empty(), "--shards"},
                                                    {!options.group_by.empty(), "--group-by"},
                                                    {!options.columns.empty(), "--columns"},
                                                    {!options.tolerance.empty(), "--tolerance"}};
  for (const auto& [given, flag] : of_models) {
    if (given)
      return fail(Code::kUsage, options.path, fmt::format("is a process image: {} is for model checkpoints", flag));
  }
  if (!options.globs.empty())
    return fail(Code::kUsage, options.path, "is a process image: it has no keys that a glob could choose");
  const ImageViews views{options.maps, options.descriptors, options.threads};
  if (options.stats && views.any())
    return fail(Code::kUsage, "", "--stats does not go with --maps, --fds and --threads");
  if (options.graph && (options.stats || views.any() || !options.html.empty() || context.out.json()))
    return fail(Code::kUsage, "", "--graph goes with no other view, and not with --json");
  if (!options.html.empty() && (options.stats || views.any()))
    return fail(Code::kUsage, "", "--html has all of a process image: no other view goes with it");
  if (options.html == "-" && context.out.json())
    return fail(Code::kUsage, "", "--html - and --json both write to stdout");
  if (!options.html.empty()) {
    CKPT_TRY(write_image_page(context, options.path, options.html));
    if (!context.out.json()) return {};
  }
  if (options.graph) return inspect_device_graph(context, options.path);
  return options.stats ? inspect_image_stats(context, options.path) : inspect_image(context, options.path, views);
}

Result<void> inspect_job_as(Context& context, const InspectOptions& options) {
  const bool plain = check_views(options).has_value() && options.globs.empty() && !options.common &&
                     !options.tree && !options.files && !options.maps && !options.descriptors && !options.threads &&
                     !options.graph &&
                     options.diff.empty() && options.shards.empty() && options.group_by.empty() &&
                     options.html.empty() && options.columns.empty();
  if (!plain) {
    return Error(Code::kUsage, options.path, "is the image of a job: no view is for that")
        .with_hint("its parts are images: " + (std::filesystem::path(options.path) / store::part_name(0)).string());
  }
  return inspect_job(context, options.path, options.stats, options.topology);
}

/// The table, the page or the JSON, with statistics where they are asked for.
Result<void> show_tensors(Context& context, View& view, const InspectOptions& options, const std::string& common) {
  if (options.stats) CKPT_TRY(add_stats(context, view, options.max_memory));
  bool equal = true;
  if (!options.html.empty()) {
    CKPT_TRY_ASSIGN(equal, write_html(context, view, options));
  }
  if (options.html.empty() || context.out.json()) {
    sort_view(view, options);
    if (context.out.json()) print_model_json(context.out, view, common);
    else if (options.common) context.out.data(common + "\n");
    else print_table(context.out, view, options);
  }
  if (!equal) return fail(Code::kMismatch, options.path, "is different from " + options.diff);
  return {};
}

Result<void> run_inspect(Context& context, InspectOptions options) {
  const bool is_image = store::ImageReader::looks_like_image(options.path);
  if (!is_image && store::looks_like_job(options.path)) return inspect_job_as(context, options);
  if (!options.topology.empty()) return fail(Code::kUsage, "--topology", "is for the image of a job");
  if (is_image) return inspect_image_as(context, options);
  if (options.maps || options.descriptors || options.threads || options.graph)
    return fail(Code::kUsage, options.path, "is no process image: --maps, --fds, --threads and --graph are for those");
  CKPT_TRY(check_views(options));
  if (options.html == "-" && context.out.json())
    return fail(Code::kUsage, "", "--html - and --json both write to stdout");
  if (!options.diff.empty() && options.html.empty()) return inspect_diff(context, options);
  CKPT_TRY_ASSIGN(tensor::Catalog catalog, open_for(options));
  for (const std::string& text : catalog.warnings) {
    if (!context.out.json()) context.out.info("warning: " + escape_for_terminal(text));
  }
  for (const std::string& text : texts_of(catalog.damage)) {
    if (!context.out.json()) context.out.info("warning: damaged: " + escape_for_terminal(text));
  }
  if (options.files) return print_files(context.out, catalog);
  std::string common;
  if (options.common) {
    CKPT_TRY_ASSIGN(common, formats::common_state_json(catalog));
  }
  if (!options.shards.empty()) options.globs = {options.shards};
  View view = select(catalog, options.globs);
  if (!options.globs.empty() && view.tensors.empty() && (view.objects.empty() || !options.shards.empty())) {
    return Error(Code::kNotFound, options.path, "no key matches " + fmt::format("{}", fmt::join(options.globs, " ")))
        .with_hint("* matches inside one part of a key, ** across dots");
  }
  if (!options.shards.empty()) return print_shards(context.out, view);
  if (options.tree) print_tree(context.out, view, options);
  else if (!options.group_by.empty()) print_groups(context.out, catalog, view);
  if (options.tree || !options.group_by.empty()) return {};
  return show_tensors(context, view, options, common);
}

}  // namespace

Command::Run add_inspect(VerbOptions& app) {
  auto options = std::make_shared<InspectOptions>();
  app.add_saved("path", Saved::kEither, options->path, "A process image or a model checkpoint")
      .type_name("PATH|URL")
      .required();
  app.add_option("glob", options->globs, "Keys to show: * inside one part, ** across dots").type_name("GLOB");
  add_from(app, options->from);
  add_max_memory(app, options->max_memory);
  app.add_flag("--skip-unreadable", options->skip_unreadable, "For --diff: what cannot be read counts for nothing");
  app.add_flag("--common", options->common, "The common state instead of the table (with --json: beside it)");
  app.add_flag("--stats", options->stats,
               "Of a model: min, max, mean, std, NaN, Inf, zeros of each tensor. Of a process image: what each kind of "
               "saving saved, and how long each phase took. Of a job's: what its ranks have in common");
  app.add_option("--topology", options->topology,
                 "Of a job's image: what each rank is; with --stats those with the same of the model are compared")
      .type_name("FILE");
  app.add_flag("--maps", options->maps, "Of a process image: the mappings of each process");
  app.add_flag("--fds", options->descriptors, "Of a process image: its descriptors");
  app.add_flag("--threads", options->threads, "Of a process image: its threads");
  app.add_flag("--graph", options->graph,
               "Of a process image: the launches that make device memory again, as a graph for dot(1)");
  app.add_flag("--tree", options->tree, "Names as a tree, sizes rolled up");
  app.add_option("--depth", options->depth, "Levels of --tree (3; 0: all)").type_name("N");
  app.add_saved("--diff", Saved::kCheckpoint, options->diff,
                "What is different in another checkpoint, of any format; exit 1 if anything is")
      .type_name("OTHER|URL");
  app.add_option("--tolerance", options->tolerance, "For --diff: ABS or ABS,REL; without it bits count")
      .type_name("ABS[,REL]");
  app.add_option("--shards", options->shards, "Where a tensor's shards lie: grid, offsets, file, bytes")
      .type_name("KEY");
  app.add_flag("--files", options->files, "The files: size, tensors, bytes referred to, bytes nothing refers to");
  app.add_option("--group-by", options->group_by, "param: each parameter with its optimizer state")
      .type_name("WHAT")
      .one_of({"param"});
  app.add_option("--html", options->html,
                 "Write a page for a browser, of a model with what --stats and --diff find (- for stdout)")
      .type_name("FILE");
  app.add_option("--sort", options->sort, "The column to sort by; numbers greatest first (key)")
      .type_name("COLUMN")
      .one_of(column_names());
  app.add_flag("--reverse", options->reverse, "The other way round");
  app.add_option("--columns", options->columns,
                 fmt::format("Columns of the table: {}", fmt::join(column_names(), ", ")))
      .type_name("LIST")
      .delimiter(',')
      .one_of(column_names());
  return [options](Context& context) { return run_inspect(context, *options); };
}

}  // namespace ckpt::cli
