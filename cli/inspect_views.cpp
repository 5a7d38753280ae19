// inspect: the tree of names, files, shards, and parameters with their optimizer state.
#include <fmt/format.h>

#include <algorithm>

#include "cli/inspect_model.h"
#include "cli/model_view.h"
#include "cli/plural.h"
#include "lib/base/text.h"
#include "lib/model/name_tree.h"
#include "lib/model/param_groups.h"
#include "lib/model/usage.h"

namespace ckpt::cli {

namespace {

using model::NameNode;

std::string percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f}%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

/// Calls `visit` for the nodes down to `depth` (0: all), parents first.
template <class Visit>
void walk(const std::vector<NameNode>& nodes, const InspectOptions& options, Visit visit) {
  auto ordered = [&](const NameNode& node) {
    std::vector<uint32_t> out = node.children;
    auto size = [&](uint32_t a, uint32_t b) { return nodes[a].bytes > nodes[b].bytes; };
    if (options.sort == "size" || options.sort == "bytes") std::stable_sort(out.begin(), out.end(), size);
    if (!options.reverse) std::reverse(out.begin(), out.end());  // the last one is taken first
    return out;
  };
  std::vector<uint32_t> open = ordered(nodes[0]);
  while (!open.empty()) {
    const uint32_t at = open.back();
    const NameNode& node = nodes[at];
    open.pop_back();
    const bool cut = options.depth != 0 && node.depth >= options.depth;
    visit(node, cut && !node.children.empty());
    if (cut) continue;
    const std::vector<uint32_t> below = ordered(node);
    open.insert(open.end(), below.begin(), below.end());
  }
}

void tree_json(Console& out, const View& view, const std::vector<NameNode>& nodes, const InspectOptions& options) {
  JsonWriter json = begin_document(*view.catalog);
  json.members("bytes", view.bytes, "tensors", view.tensors.size());
  // One flat list: whoever reads it needs no recursion, and no parser is too shallow for it.
  json.open("tree", '[');
  walk(nodes, options, [&](const NameNode& node, bool cut) {
    json.row('{');
    json.members("depth", node.depth, "name", node.name, "bytes", node.bytes, "elements", node.elements,
                 "tensors", node.tensors);
    json.open("dtypes", '[');
    for (unsigned i = 0; i < 64; ++i) {
      if ((node.dtypes >> i & 1) != 0) json.string(tensor::dtype_name(static_cast<tensor::DType>(i)));
    }
    json.close();
    if (node.tensor != nullptr) {
      json.members("key", node.tensor->key, "shape", node.tensor->shape);
    }
    if (cut) json.member("cut", true);
    json.close();
    if (json.full()) out.data(json.take());
  });
  out.data(std::move(json).finish());
}

/// Below a column's header: "4 of 12", or a list that is not too long.
std::string dtypes_text(const NameNode& node) {
  std::string out = model::dtype_list(node.dtypes);
  return out.size() > 40 ? out.substr(0, 37) + "..." : out;
}

}  // namespace

void print_tree(Console& out, const View& view, const InspectOptions& options) {
  const std::vector<NameNode> nodes = model::name_tree(view.tensors);
  if (out.json()) return tree_json(out, view, nodes, options);
  std::vector<std::vector<std::string>> rows;
  walk(nodes, options, [&](const NameNode& node, bool cut) {
    rows.push_back({std::string(2 * (node.depth - 1), ' ') + node.name + (cut ? ".**" : ""), human_bytes(node.bytes),
                    percent(node.bytes, view.bytes), std::to_string(node.tensors), dtypes_text(node),
                    node.tensor != nullptr ? shape_text(node.tensor->shape) : ""});
  });
  out.table({"NAME", "SIZE", "SHARE", "TENSORS", "DTYPE", "SHAPE"}, rows, {1, 2, 3});
  out.data(fmt::format("\n{}: {}, {}, {}\n", view.catalog->format, counted(view.tensors.size(), "tensor"),
                       counted(view.elements, "element"), human_bytes(view.bytes)));
}

Result<void> print_files(Console& out, const tensor::Catalog& catalog) {
  CKPT_TRY_ASSIGN(std::vector<model::FileUsage> files, model::file_usage(catalog));
  uint64_t size = 0, referred = 0;
  for (const model::FileUsage& file : files) {
    size += file.size;
    referred += file.referred;
  }
  auto other = [](const model::FileUsage& file) { return file.size - std::min(file.size, file.referred); };
  if (out.json()) {
    JsonWriter json = begin_document(catalog);
    json.members("bytes", size, "referred", referred);
    json.open("files", '[');
    for (const model::FileUsage& file : files) {
      json.row_of("file", file.path, "bytes", file.size, "tensors", file.tensors, "shards", file.shards,
                  "objects", file.objects, "referred", file.referred, "other", other(file), "listed", file.listed,
                  "missing", file.missing);
    }
    out.data(std::move(json).finish());
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const model::FileUsage& file : files) {
    rows.push_back({file.path, file.missing ? "missing" : human_bytes(file.size), std::to_string(file.tensors),
                    std::to_string(file.shards), std::to_string(file.objects), human_bytes(file.referred),
                    human_bytes(other(file))});
  }
  out.table({"FILE", "SIZE", "TENSORS", "SHARDS", "OBJECTS", "REFERRED", "OTHER"}, rows, {1, 2, 3, 4, 5, 6});
  out.data(fmt::format("\n{}: {}, {}; tensors, objects and the common state are {} ({}) of it\n", catalog.format,
                       counted(files.size(), "file"), human_bytes(size), human_bytes(referred),
                       percent(referred, size)));
  return {};
}

namespace {

void groups_json(Console& out, const tensor::Catalog& catalog, const model::ParamGroups& groups,
                 const std::vector<const model::ParamGroup*>& chosen) {
  JsonWriter json = begin_document(catalog);
  json.members("states", groups.states, "by_bucket", groups.by_bucket);
  json.open("groups", '[');
  for (const model::ParamGroup* g : chosen) {
    json.row('{');
    json.member("name", g->name);
    json.key("param");
    if (g->param != nullptr) json.string(g->param->key);
    else json.null();
    json.member("bytes", g->bytes());
    json.open("states", '{');
    for (const model::OptimizerState& state : g->states) {
      json.key_text(state.slot);
      json.string(state.tensor->key);
    }
    json.close();
    json.member("missing", g->missing);
    json.close();
    if (json.full()) out.data(json.take());
  }
  json.close();
  json.open("findings", '[');
  for (const tensor::Finding& finding : model::check_params(groups)) {
    json.row_of("key", finding.key, "message", finding.message);
  }
  out.data(std::move(json).finish());
}

}  // namespace

void print_groups(Console& out, const tensor::Catalog& catalog, const View& view) {
  const model::ParamGroups groups = model::group_params(catalog);
  std::vector<const tensor::Tensor*> wanted = view.tensors;
  std::sort(wanted.begin(), wanted.end());
  auto is_wanted = [&](const tensor::Tensor* t) {
    return t != nullptr && std::binary_search(wanted.begin(), wanted.end(), t);
  };
  std::vector<const model::ParamGroup*> chosen;
  for (const model::ParamGroup& g : groups.groups) {
    if (is_wanted(g.param) ||
        std::any_of(g.states.begin(), g.states.end(), [&](const auto& s) { return is_wanted(s.tensor); }))
      chosen.push_back(&g);
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto* a, const auto* b) { return model::natural_less(a->name, b->name); });
  if (out.json()) return groups_json(out, catalog, groups, chosen);
  std::vector<std::vector<std::string>> rows;
  for (const model::ParamGroup* g : chosen) {
    std::string states;
    for (const model::OptimizerState& state : g->states) states += (states.empty() ? "" : " ") + state.slot;
    std::string missing;
    for (const std::string& slot : g->missing) missing += (missing.empty() ? "lacks " : " ") + slot;
    if (g->param == nullptr) missing = "no such parameter";
    const uint64_t bytes = g->param != nullptr ? g->param->bytes() : 0;
    rows.push_back({g->name, g->param != nullptr ? shape_text(g->param->shape) : "-", human_bytes(bytes),
                    human_bytes(g->bytes() - bytes), states.empty() ? "-" : states, missing});
  }
  out.table({"PARAMETER", "SHAPE", "SIZE", "STATE", "KEPT", ""}, rows, {2, 3});
  out.data("\n");
  for (const tensor::Finding& finding : model::check_params(groups))
    out.data("warning: " + escape_for_terminal(finding.text()) + "\n");
  out.data(
      fmt::format("{}: {} parameters and orphans, {} optimizer states, {} others{}\n", catalog.format,
                  groups.groups.size(), groups.states, groups.others.size() - groups.by_bucket,
                  groups.by_bucket != 0 ? fmt::format(", {} buckets that name no parameter", groups.by_bucket) : ""));
}

namespace {

/// Where a shard's bytes are and how they are kept there.
struct Stored {
  Stored(const tensor::Catalog& catalog, const tensor::Shard& s) {
    const tensor::FileRange& range = s.where.length != 0 ? s.where : s.item;
    begin = range.offset;
    end = range.offset + range.length;
    if (range.length != 0 && range.file < catalog.files.size()) file = &catalog.files[range.file].path;
    how = s.encoding == tensor::Encoding::kFill      ? "fill"
          : s.encoding == tensor::Encoding::kEncoded ? "encoded"
          : s.where.length != 0                      ? "raw"
                                                     : "record";
  }
  const std::string* file = nullptr;  ///< null: not known, nor are `begin` and `end`
  uint64_t begin = 0, end = 0;        ///< bytes in it
  const char* how;
};

std::vector<const tensor::Shard*> sorted_shards(const tensor::Tensor& t) {
  std::vector<const tensor::Shard*> out;
  for (const tensor::Shard& shard : t.shards) out.push_back(&shard);
  std::stable_sort(out.begin(), out.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  return out;
}

void shards_json(Console& out, const View& view) {
  JsonWriter json = begin_document(*view.catalog);
  json.open("tensors", '[');
  for (const tensor::Tensor* t : view.tensors) {
    json.open('{');
    json.members("key", t->key, "dtype", tensor::dtype_name(t->dtype), "shape", t->shape,
                 "grid", model::shard_grid(*t));
    json.open("shards", '[');
    for (const tensor::Shard* s : sorted_shards(*t)) {
      const Stored stored(*view.catalog, *s);
      json.row('{');
      json.members("offset", s->offset, "shape", s->shape);
      if (stored.file != nullptr) json.members("file", *stored.file, "begin", stored.begin, "end", stored.end);
      json.member("stored", stored.how);
      json.close();
      if (json.full()) out.data(json.take());
    }
    json.close();
    json.close();
  }
  out.data(std::move(json).finish());
}

}  // namespace

Result<void> print_shards(Console& out, const View& view) {
  if (out.json()) {
    shards_json(out, view);
    return {};
  }
  for (const tensor::Tensor* t : view.tensors) {
    std::vector<std::vector<std::string>> rows;
    for (const tensor::Shard* s : sorted_shards(*t)) {
      const Stored stored(*view.catalog, *s);
      const bool known = stored.file != nullptr;
      rows.push_back({s->offset.empty() ? "-" : fmt::format("{}", fmt::join(s->offset, ",")), shape_text(s->shape),
                      known ? *stored.file : "-", known ? std::to_string(stored.begin) : "-",
                      known ? std::to_string(stored.end) : "-", stored.how});
    }
    auto grid = model::shard_grid(*t);
    out.data(fmt::format("{}{}: {} {}, {} shards, {}\n", t == view.tensors.front() ? "" : "\n",
                         escape_for_terminal(t->key), tensor::dtype_name(t->dtype), shape_text(t->shape),
                         t->shards.size(), grid ? "grid " + shape_text(*grid) : "no grid"));
    out.table({"OFFSET", "SHAPE", "FILE", "BEGIN", "END", "STORED"}, rows, {3, 4});
  }
  return {};
}

}  // namespace ckpt::cli
