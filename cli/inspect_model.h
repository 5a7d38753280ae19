// The views of a model checkpoint that `inspect` offers. Each prints text or, with --json, one document of the schema
// ckpt.inspect/1.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/base/json_writer.h"
#include "lib/model/diff.h"
#include "lib/model/stats.h"
#include "lib/tensor/catalog.h"

namespace ckpt::cli {

struct InspectOptions {
  std::string path, from = "auto";
  std::vector<std::string> globs;
  bool common = false, stats = false, tree = false, files = false, reverse = false;
  unsigned depth = 3;
  std::string diff, tolerance, shards, sort = "key", group_by, html;
  std::string topology;  ///< of a job; empty: what it was told
  std::vector<std::string> columns;
  uint64_t max_memory = uint64_t{256} << 20;
  bool skip_unreadable = false;
  bool maps = false, descriptors = false, threads = false, graph = false;  ///< of a process image
};

/// What the globs have chosen, in the catalog's order until it is sorted.
struct View {
  const tensor::Catalog* catalog = nullptr;
  std::vector<const tensor::Tensor*> tensors;
  std::vector<const tensor::Object*> objects;
  std::vector<model::Stats> stats;  ///< of `tensors`; empty without --stats
  uint64_t bytes = 0, elements = 0, shards = 0;
};

/// The table's columns that exist, the default ones first.
std::vector<std::string> column_names();
/// Whether the columns of --columns and --sort have their values (kUsage).
Result<void> check_columns(const InspectOptions& options);
/// Sorts the view as --sort and --reverse say, its statistics with it.
void sort_view(View& view, const InspectOptions& options);

void print_table(Console& out, const View& view, const InspectOptions& options);
void print_model_json(Console& out, const View& view, const std::string& common);
void print_tree(Console& out, const View& view, const InspectOptions& options);
Result<void> print_files(Console& out, const tensor::Catalog& catalog);
void print_groups(Console& out, const tensor::Catalog& catalog, const View& view);
Result<void> print_shards(Console& out, const View& view);

/// kMismatch: they differ (what was found has been printed).
Result<void> inspect_diff(Context& context, const InspectOptions& options);
/// "1e-6" or "1e-6,1e-3": absolute and relative.
Result<std::optional<model::Tolerance>> parse_tolerance(const std::string& text);
/// What --diff compares, with its values.
Result<model::CatalogDiff> run_diff(Context& context, const tensor::Catalog& a, const tensor::Catalog& b,
                                    const InspectOptions& options);

/// --html, with the statistics of the view and with --diff what differs. False where anything does.
Result<bool> write_html(Context& context, const View& view, const InspectOptions& options);

/// The beginning of every document: an object with schema, kind, format and path, still open.
JsonWriter begin_document(const tensor::Catalog& catalog);

}  // namespace ckpt::cli
