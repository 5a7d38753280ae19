// `ckpt inspect PATH [GLOB...]`: what is in it.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/inspect_image.h"
#include "cli/model_view.h"
#include "formats/common_state.h"
#include "lib/base/json_text.h"
#include "lib/base/text.h"
#include "lib/store/image.h"
#include "lib/tensor/name_tree.h"

namespace ckpt::cli {

namespace {

struct InspectOptions {
  std::string path;
  std::vector<std::string> globs;
  bool common = false;
  bool stats = false;
};

struct Totals {
  uint64_t bytes = 0, elements = 0, shards = 0;
};

struct View {
  std::vector<const tensor::Tensor*> tensors;
  std::vector<const tensor::Object*> objects;
  Totals totals;
};

View select(const tensor::Catalog& catalog, const std::vector<std::string>& globs) {
  View out;
  for (const tensor::Tensor& t : catalog.tensors) {
    if (!matches_any(globs, t.key)) continue;
    out.tensors.push_back(&t);
    out.totals.bytes += t.bytes();
    out.totals.elements += tensor::element_count(t.shape).value_or(0);
    out.totals.shards += t.shards.size();
  }
  for (const tensor::Object& object : catalog.objects) {
    if (matches_any(globs, object.key)) out.objects.push_back(&object);
  }
  auto by_name = [](const auto* a, const auto* b) { return tensor::natural_less(a->key, b->key); };
  std::stable_sort(out.tensors.begin(), out.tensors.end(), by_name);
  std::stable_sort(out.objects.begin(), out.objects.end(), by_name);
  return out;
}

uint64_t stored_bytes(const tensor::Object& object) {
  return object.inline_bytes.empty() ? object.where.length : object.inline_bytes.size();
}

void print_tables(Console& out, const tensor::Catalog& catalog, const View& view) {
  std::vector<std::vector<std::string>> rows;
  for (const tensor::Tensor* t : view.tensors) {
    rows.push_back({t->key, std::string(tensor::dtype_name(t->dtype)), shape_text(t->shape), human_bytes(t->bytes()),
                    std::to_string(t->shards.size())});
  }
  if (!rows.empty()) out.table({"TENSOR", "DTYPE", "SHAPE", "SIZE", "SHARDS"}, rows, {3, 4});
  rows.clear();
  for (const tensor::Object* object : view.objects) rows.push_back({object->key, human_bytes(stored_bytes(*object))});
  if (!rows.empty()) {
    if (!view.tensors.empty()) out.data("\n");
    out.table({"OBJECT", "SIZE"}, rows, {1});
  }
  for (const std::string& text : catalog.unsupported) out.data("not readable: " + escape_for_terminal(text) + "\n");
  out.data(fmt::format("\n{}: {} tensors, {} elements, {}; {} shards, {} objects, {} files{}\n", catalog.format, view.tensors.size(),
                       view.totals.elements, human_bytes(view.totals.bytes), view.totals.shards, view.objects.size(),
                       catalog.files.size(), catalog.common ? "; common state" : ""));
}

void print_json(Console& out, const tensor::Catalog& catalog, const View& view, const std::string& common) {
  std::string text = "{\"schema\": \"ckpt.inspect/1\", \"kind\": \"model\", \"format\": " + json_string(catalog.format) +
                     ", \"path\": " + json_string(catalog.root.string()) + ",\n\"tensors\": [";
  for (size_t i = 0; i < view.tensors.size(); ++i) {
    const tensor::Tensor& t = *view.tensors[i];
    text += (i == 0 ? "\n  {\"key\": " : ",\n  {\"key\": ") + json_string(t.key) + ", \"dtype\": \"" + std::string(tensor::dtype_name(t.dtype)) +
            "\", \"shape\": ";
    append_json_numbers(text, t.shape);
    text += fmt::format(", \"bytes\": {}, \"shards\": {}}}", t.bytes(), t.shards.size());
    if (text.size() > 1 << 16) {
      out.data(text);
      text.clear();
    }
  }
  text += "],\n\"objects\": [";
  for (size_t i = 0; i < view.objects.size(); ++i) {
    text += (i == 0 ? "\n  {\"key\": " : ",\n  {\"key\": ") + json_string(view.objects[i]->key) +
            fmt::format(", \"bytes\": {}}}", stored_bytes(*view.objects[i]));
  }
  auto list = [&](const char* name, const std::vector<std::string>& lines) {
    text += std::string("],\n\"") + name + "\": [";
    for (size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : ", ") + json_string(lines[i]);
  };
  list("unsupported", catalog.unsupported);
  list("warnings", catalog.warnings);
  text += fmt::format("],\n\"totals\": {{\"tensors\": {}, \"elements\": {}, \"bytes\": {}, \"shards\": {}, \"objects\": {}, \"files\": {}}}",
                      view.tensors.size(), view.totals.elements, view.totals.bytes, view.totals.shards, view.objects.size(),
                      catalog.files.size());
  if (!common.empty()) text += ",\n\"common\": " + common;
  out.data(text + "}\n");
}

Result<void> run_inspect(Context& context, const InspectOptions& options) {
  if (store::ImageReader::looks_like_image(options.path)) {
    if (options.globs.empty() && !options.common) {
      return options.stats ? inspect_image_stats(context, options.path) : inspect_image(context, options.path);
    }
    return fail(Code::kUsage, options.path, "is a process image: it has neither keys to choose from nor a common state");
  }
  CKPT_TRY_ASSIGN(tensor::Catalog catalog, open_metadata(options.path));
  if (options.stats) return fail(Code::kUsage, options.path, "is a model checkpoint: --stats is for process images");
  std::string common;
  if (options.common) {
    CKPT_TRY_ASSIGN(common, formats::common_state_json(catalog));
  }
  View view = select(catalog, options.globs);
  if (!options.globs.empty() && view.tensors.empty() && view.objects.empty()) {
    return Error(Code::kNotFound, options.path, "no key matches " + fmt::format("{}", fmt::join(options.globs, " ")))
        .with_hint("* matches inside one part of a key, ** across dots");
  }
  if (context.out.json()) {
    print_json(context.out, catalog, view, common);
    return {};
  }
  for (const std::string& text : catalog.warnings) context.out.info("warning: " + escape_for_terminal(text));
  if (options.common) context.out.data(common + "\n");
  else print_tables(context.out, catalog, view);
  return {};
}

}  // namespace

Command::Run add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  app.add_option("path", options->path, "A process image or a model checkpoint")->type_name("PATH")->required();
  app.add_option("glob", options->globs, "Keys to show: * inside one part, ** across dots")->type_name("GLOB");
  app.add_flag("--common", options->common, "The common state instead of the table (with --json: beside it)");
  app.add_flag("--stats", options->stats, "Of a process image: what each kind of saving saved, and how long each phase took");
  return [options](Context& context) { return run_inspect(context, *options); };
}

}  // namespace ckpt::cli
