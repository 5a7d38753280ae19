// inspect: the tree of names, files, shards, and parameters with their optimizer state.
#include <fmt/format.h>

#include <algorithm>

#include "cli/inspect_model.h"
#include "cli/model_view.h"
#include "cli/plural.h"
#include "lib/base/json_text.h"
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
  std::string text = document_head(*view.catalog) +
                     fmt::format(", \"bytes\": {}, \"tensors\": {},\n\"tree\": [", view.bytes, view.tensors.size());
  const char* separator = "\n";
  // One flat list: whoever reads it needs no recursion, and no parser is too shallow for it.
  walk(nodes, options, [&](const NameNode& node, bool cut) {
    text += fmt::format(
        "{}  {{\"depth\": {}, \"name\": {}, \"bytes\": {}, \"elements\": {}, \"tensors\": {}, \"dtypes\": [", separator,
        node.depth, json_string(node.name), node.bytes, node.elements, node.tensors);
    separator = ",\n";
    bool first = true;
    for (unsigned i = 0; i < 64; ++i) {
      if ((node.dtypes >> i & 1) == 0) continue;
      text += fmt::format("{}\"{}\"", first ? "" : ", ", tensor::dtype_name(static_cast<tensor::DType>(i)));
      first = false;
    }
    text += "]";
    if (node.tensor != nullptr) {
      text += ", \"key\": " + json_string(node.tensor->key) + ", \"shape\": ";
      append_json_numbers(text, node.tensor->shape);
    }
    text += cut ? ", \"cut\": true}" : "}";
  });
  out.data(text + "]}\n");
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
    std::string text =
        document_head(catalog) + fmt::format(", \"bytes\": {}, \"referred\": {},\n\"files\": [", size, referred);
    const char* separator = "\n";
    for (const model::FileUsage& file : files) {
      text += fmt::format(
          "{}  {{\"file\": {}, \"bytes\": {}, \"tensors\": {}, \"shards\": {}, \"objects\": {}, \"referred\": {}, "
          "\"other\": {}, "
          "\"listed\": {}, \"missing\": {}}}",
          separator, json_string(file.path), file.size, file.tensors, file.shards, file.objects, file.referred,
          other(file), file.listed, file.missing);
      separator = ",\n";
    }
    out.data(text + "]}\n");
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
  std::string text = document_head(catalog) + fmt::format(", \"states\": {}, \"by_bucket\": {},\n\"groups\": [",
                                                          groups.states, groups.by_bucket);
  const char* separator = "\n";
  for (const model::ParamGroup* g : chosen) {
    text += fmt::format("{}  {{\"name\": {}, \"param\": {}, \"bytes\": {}, \"states\": {{", separator,
                        json_string(g->name), g->param != nullptr ? json_string(g->param->key) : "null", g->bytes());
    separator = ",\n";
    for (size_t i = 0; i < g->states.size(); ++i) {
      text += (i == 0 ? "" : ", ") + json_string(g->states[i].slot) + ": " + json_string(g->states[i].tensor->key);
    }
    text += "}, \"missing\": [";
    for (size_t i = 0; i < g->missing.size(); ++i) text += (i == 0 ? "" : ", ") + json_string(g->missing[i]);
    text += "]}";
    if (text.size() > 1 << 16) {
      out.data(text);
      text.clear();
    }
  }
  text += "],\n\"findings\": [";
  separator = "\n";
  for (const tensor::Finding& finding : model::check_params(groups)) {
    text += separator +
            fmt::format("  {{\"key\": {}, \"message\": {}}}", json_string(finding.key), json_string(finding.message));
    separator = ",\n";
  }
  out.data(text + "]}\n");
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

Result<void> print_shards(Console& out, const View& view) {
  const tensor::Catalog& catalog = *view.catalog;
  std::string text = document_head(catalog) + ",\n\"tensors\": [";
  for (size_t i = 0; i < view.tensors.size(); ++i) {
    const tensor::Tensor& t = *view.tensors[i];
    auto grid = model::shard_grid(t);
    std::vector<const tensor::Shard*> shards;
    for (const tensor::Shard& shard : t.shards) shards.push_back(&shard);
    std::stable_sort(shards.begin(), shards.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
    if (out.json()) {
      text += (i == 0 ? "\n{\"key\": " : ",\n{\"key\": ") + json_string(t.key) +
              fmt::format(", \"dtype\": \"{}\", \"shape\": ", tensor::dtype_name(t.dtype));
      append_json_numbers(text, t.shape);
      text += ", \"grid\": ";
      if (grid) append_json_numbers(text, *grid);
      else text += "null";
      text += ", \"shards\": [";
    }
    std::vector<std::vector<std::string>> rows;
    for (const tensor::Shard* s : shards) {
      const bool located = s->where.length != 0;
      const tensor::FileRange& range = located ? s->where : s->item;
      const bool known = range.length != 0 && range.file < catalog.files.size();
      const char* how = s->encoding == tensor::Encoding::kFill      ? "fill"
                        : s->encoding == tensor::Encoding::kEncoded ? "encoded"
                        : located                                   ? "raw"
                                                                    : "record";
      if (out.json()) {
        text += s == shards.front() ? "\n  {\"offset\": " : ",\n  {\"offset\": ";
        append_json_numbers(text, s->offset);
        text += ", \"shape\": ";
        append_json_numbers(text, s->shape);
        if (known)
          text += fmt::format(", \"file\": {}, \"begin\": {}, \"end\": {}", json_string(catalog.files[range.file].path),
                              range.offset, range.offset + range.length);
        text += fmt::format(", \"stored\": \"{}\"}}", how);
      } else {
        std::string at;
        for (uint64_t n : s->offset) at += (at.empty() ? "" : ",") + std::to_string(n);
        rows.push_back({at.empty() ? "-" : at, shape_text(s->shape), known ? catalog.files[range.file].path : "-",
                        known ? std::to_string(range.offset) : "-",
                        known ? std::to_string(range.offset + range.length) : "-", how});
      }
    }
    if (out.json()) {
      text += "]}";
      continue;
    }
    out.data(fmt::format("{}{}: {} {}, {} shards, {}\n", i == 0 ? "" : "\n", escape_for_terminal(t.key),
                         tensor::dtype_name(t.dtype), shape_text(t.shape), t.shards.size(),
                         grid ? "grid " + shape_text(*grid) : "no grid"));
    out.table({"OFFSET", "SHAPE", "FILE", "BEGIN", "END", "STORED"}, rows, {3, 4});
  }
  if (out.json()) out.data(text + "]}\n");
  return {};
}

}  // namespace ckpt::cli
