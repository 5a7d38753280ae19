// inspect: the table, with its columns and orders, and the document of all tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/inspect_model.h"
#include "cli/model_view.h"
#include "cli/plural.h"
#include "lib/base/text.h"
#include "lib/model/name_tree.h"
#include "lib/model/usage.h"
#include "lib/tensor/values.h"

namespace ckpt::cli {

namespace {

using model::Stats;
using tensor::Tensor;

std::string number_text(tensor::DType dtype, long double value) {
  return tensor::is_floating(dtype) ? fmt::format("{:.6g}", static_cast<double>(value)) : fmt::format("{:.0f}", value);
}

std::string grid_text(const Tensor& t) {
  if (t.shards.size() < 2) return "-";
  auto grid = model::shard_grid(t);
  return grid ? shape_text(*grid) : "irregular";
}

std::string file_text(const tensor::Catalog& catalog, const Tensor& t) {
  std::vector<uint32_t> files;
  for (const tensor::Shard& shard : t.shards) {
    const tensor::FileRange& range = shard.where.length != 0 ? shard.where : shard.item;
    if (range.length != 0 && range.file < catalog.files.size()) files.push_back(range.file);
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty()) return "-";
  return catalog.files[files[0]].path + (files.size() > 1 ? " +" + std::to_string(files.size() - 1) : "");
}

/// One tensor as a row sees it.
struct Row {
  const tensor::Catalog& catalog;
  const Tensor& t;
  const Stats* stats;
};

struct Column {
  const char* name;
  const char* header;
  bool right;   ///< a number
  bool by_value;///< sorted by `value`, greatest first; else by `text`
  bool stats;
  std::string (*text)(const Row& row);
  long double (*value)(const Row& row);
};

long double no_value(const Row&) { return 0; }

constexpr Column kColumns[] = {
    {"key", "TENSOR", false, false, false, [](const Row& r) { return r.t.key; }, no_value},
    {"dtype", "DTYPE", false, false, false, [](const Row& r) { return std::string(tensor::dtype_name(r.t.dtype)); },
     no_value},
    {"shape", "SHAPE", false, false, false, [](const Row& r) { return shape_text(r.t.shape); }, no_value},
    {"size", "SIZE", true, true, false, [](const Row& r) { return human_bytes(r.t.bytes()); },
     [](const Row& r) -> long double { return r.t.bytes(); }},
    {"shards", "SHARDS", true, true, false, [](const Row& r) { return std::to_string(r.t.shards.size()); },
     [](const Row& r) -> long double { return r.t.shards.size(); }},
    {"bytes", "BYTES", true, true, false, [](const Row& r) { return std::to_string(r.t.bytes()); },
     [](const Row& r) -> long double { return r.t.bytes(); }},
    {"elements", "ELEMENTS", true, true, false,
     [](const Row& r) { return std::to_string(tensor::element_count(r.t.shape).value_or(0)); },
     [](const Row& r) -> long double { return tensor::element_count(r.t.shape).value_or(0); }},
    {"grid", "GRID", false, false, false, [](const Row& r) { return grid_text(r.t); }, no_value},
    {"file", "FILE", false, false, false, [](const Row& r) { return file_text(r.catalog, r.t); }, no_value},
    {"min", "MIN", true, true, true,
     [](const Row& r) { return r.stats->finite() ? number_text(r.t.dtype, r.stats->min) : "-"; },
     [](const Row& r) { return r.stats->min; }},
    {"max", "MAX", true, true, true,
     [](const Row& r) { return r.stats->finite() ? number_text(r.t.dtype, r.stats->max) : "-"; },
     [](const Row& r) { return r.stats->max; }},
    {"mean", "MEAN", true, true, true,
     [](const Row& r) { return r.stats->finite() ? fmt::format("{:.6g}", r.stats->mean) : "-"; },
     [](const Row& r) -> long double { return r.stats->mean; }},
    {"std", "STD", true, true, true,
     [](const Row& r) { return r.stats->finite() ? fmt::format("{:.6g}", r.stats->deviation()) : "-"; },
     [](const Row& r) -> long double { return r.stats->deviation(); }},
    {"nan", "NAN", true, true, true, [](const Row& r) { return std::to_string(r.stats->nans); },
     [](const Row& r) -> long double { return r.stats->nans; }},
    {"inf", "INF", true, true, true, [](const Row& r) { return std::to_string(r.stats->infs); },
     [](const Row& r) -> long double { return r.stats->infs; }},
    {"zeros", "ZEROS", true, true, true, [](const Row& r) { return std::to_string(r.stats->zeros); },
     [](const Row& r) -> long double { return r.stats->zeros; }},
};

const Column* find_column(const std::string& name) {
  auto at = std::find_if(std::begin(kColumns), std::end(kColumns), [&](const Column& c) { return name == c.name; });
  return at == std::end(kColumns) ? nullptr : at;
}

std::vector<const Column*> chosen(const InspectOptions& options) {
  std::vector<std::string> names = options.columns;
  if (names.empty()) {
    names = {"key", "dtype", "shape", "size", "shards"};
    if (options.stats) names = {"key", "dtype", "shape", "size", "min", "max", "mean", "std", "nan", "inf", "zeros"};
  }
  std::vector<const Column*> out;
  for (const std::string& name : names) out.push_back(find_column(name));
  return out;
}

uint64_t stored_bytes(const tensor::Object& object) {
  return object.inline_bytes.empty() ? object.where.length : object.inline_bytes.size();
}

/// What has no number is null.
void write_stats(JsonWriter& json, tensor::DType dtype, const Stats& stats) {
  const bool any = stats.finite() != 0;
  auto exact = [&](const char* name, long double x) {
    json.key(name);
    if (any && !tensor::is_floating(dtype)) json.scalar(fmt::format("{:.0f}", x));
    else json.real(any ? static_cast<double>(x) : NAN);
  };
  json.open("stats", '{');
  exact("min", stats.min);
  exact("max", stats.max);
  json.members("mean", any ? stats.mean : NAN, "std", any ? stats.deviation() : NAN, "nan", stats.nans,
               "inf", stats.infs, "zeros", stats.zeros);
  json.close();
}

}  // namespace

std::vector<std::string> column_names() {
  std::vector<std::string> out;
  for (const Column& column : kColumns) out.push_back(column.name);
  return out;
}

Result<void> check_columns(const InspectOptions& options) {
  std::vector<std::string> names = options.columns;
  names.push_back(options.sort);
  for (const std::string& name : names) {
    if (find_column(name)->stats && !options.stats) return fail(Code::kUsage, name, "needs --stats");
  }
  return {};
}

void sort_view(View& view, const InspectOptions& options) {
  auto by_name = [](const auto* a, const auto* b) { return model::natural_less(a->key, b->key); };
  std::stable_sort(view.objects.begin(), view.objects.end(), by_name);
  const Column& column = *find_column(options.sort);
  auto row = [&](size_t i) {
    return Row{*view.catalog, *view.tensors[i], view.stats.empty() ? nullptr : &view.stats[i]};
  };
  std::vector<size_t> order(view.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (column.by_value) {
    std::vector<long double> values;
    for (size_t i : order) values.push_back(column.value(row(i)));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  } else {
    std::vector<std::string> texts;
    for (size_t i : order) texts.push_back(column.text(row(i)));
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return model::natural_less(texts[a], texts[b]); });
  }
  if (options.reverse) std::reverse(order.begin(), order.end());
  View sorted = view;
  for (size_t i = 0; i < order.size(); ++i) {
    sorted.tensors[i] = view.tensors[order[i]];
    if (!view.stats.empty()) sorted.stats[i] = view.stats[order[i]];
  }
  view = std::move(sorted);
}

void print_table(Console& out, const View& view, const InspectOptions& options) {
  const std::vector<const Column*> columns = chosen(options);
  std::vector<std::string> header;
  std::vector<size_t> right;
  for (const Column* column : columns) {
    if (column->right) right.push_back(header.size());
    header.push_back(column->header);
  }
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < view.tensors.size(); ++i) {
    const Row row{*view.catalog, *view.tensors[i], view.stats.empty() ? nullptr : &view.stats[i]};
    auto& cells = rows.emplace_back();
    for (const Column* column : columns) cells.push_back(column->text(row));
  }
  if (!rows.empty()) out.table(header, rows, right);
  rows.clear();
  for (const tensor::Object* object : view.objects) rows.push_back({object->key, human_bytes(stored_bytes(*object))});
  if (!rows.empty()) {
    if (!view.tensors.empty()) out.data("\n");
    out.table({"OBJECT", "SIZE"}, rows, {1});
  }
  const tensor::Catalog& catalog = *view.catalog;
  for (const std::string& text : texts_of(catalog.unsupported))
    out.data("not readable: " + escape_for_terminal(text) + "\n");
  out.data(fmt::format("\n{}: {}, {}, {}; {}, {}, {}{}\n", catalog.format, counted(view.tensors.size(), "tensor"),
                       counted(view.elements, "element"), human_bytes(view.bytes), counted(view.shards, "shard"),
                       counted(view.objects.size(), "object"), counted(catalog.files.size(), "file"),
                       catalog.common ? "; common state" : ""));
}

JsonWriter begin_document(const tensor::Catalog& catalog) {
  JsonWriter json;
  json.open('{');
  json.members("schema", "ckpt.inspect/1", "kind", "model", "format", catalog.format, "path", catalog.root.native());
  return json;
}

void print_model_json(Console& out, const View& view, const std::string& common) {
  const tensor::Catalog& catalog = *view.catalog;
  JsonWriter json = begin_document(catalog);
  json.open("tensors", '[');
  for (size_t i = 0; i < view.tensors.size(); ++i) {
    const Tensor& t = *view.tensors[i];
    json.row('{');
    json.members("key", t.key, "dtype", tensor::dtype_name(t.dtype), "shape", t.shape, "bytes", t.bytes(),
                 "shards", t.shards.size());
    if (!view.stats.empty()) write_stats(json, t.dtype, view.stats[i]);
    json.close();
    if (json.full()) out.data(json.take());
  }
  json.close();
  json.open("objects", '[');
  for (const tensor::Object* object : view.objects) {
    json.row_of("key", object->key, "bytes", stored_bytes(*object));
  }
  json.close();
  json.members("unsupported", texts_of(catalog.unsupported), "damage", texts_of(catalog.damage),
               "warnings", catalog.warnings);
  json.open("totals", '{');
  json.members("tensors", view.tensors.size(), "elements", view.elements, "bytes", view.bytes, "shards", view.shards,
               "objects", view.objects.size(), "files", catalog.files.size());
  json.close();
  if (!common.empty()) json.feed("common", common);
  out.data(std::move(json).finish());
}

}  // namespace ckpt::cli
