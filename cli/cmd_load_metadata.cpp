// `ckpt load-metadata PATH`: JSON, and no tensor byte is read. Written as it is made: a checkpoint may have a million
// shards.
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/inspect_image.h"
#include "cli/model_view.h"
#include "cli/plan_document.h"
#include "formats/common_state.h"
#include "lib/base/json_text.h"
#include "lib/base/text.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

struct LoadMetadataOptions {
  std::string path, from = "auto";
  std::vector<std::string> globs;
  bool common = false;
  std::string plan;
  std::optional<uint64_t> rank;
};

class Document {
 public:
  Document(Console& out, const tensor::Catalog& catalog) : out_(out), catalog_(catalog) {}

  void print(const std::vector<std::string>& globs, const std::string& common) {
    text_ = "{\"schema\": \"ckpt.load-metadata/1\", \"kind\": \"model\", \"format\": " + json_string(catalog_.format) +
            ", \"path\": " + json_string(catalog_.root.string()) +
            ",\n\"metadata\": " + (catalog_.metadata_json.empty() ? "{}" : catalog_.metadata_json) +
            ",\n\"tensors\": [";
    const char* separator = "\n";
    for (const tensor::Tensor& t : catalog_.tensors) {
      if (!matches_any(globs, t.key)) continue;
      text_ += separator;
      separator = ",\n";
      tensor(t);
      flush(1 << 16);
    }
    text_ += "],\n\"objects\": [";
    separator = "\n";
    for (const tensor::Object& object : catalog_.objects) {
      if (!matches_any(globs, object.key)) continue;
      text_ += separator;
      separator = ",\n";
      text_ += "  {\"key\": ";
      append_json_string(text_, object.key);
      place("range", object.where);
      text_ += '}';
      flush(1 << 16);
    }
    strings("unsupported", texts_of(catalog_.unsupported));
    strings("damage", texts_of(catalog_.damage));
    strings("warnings", catalog_.warnings);
    text_ += "]";
    if (!common.empty()) text_ += ",\n\"common\": " + common;
    text_ += "}\n";
    flush(0);
  }

 private:
  void flush(size_t limit) {
    if (text_.size() <= limit) return;
    out_.data(text_);
    text_.clear();
  }
  void number(uint64_t n) {
    fmt::format_int digits(n);
    text_.append(digits.data(), digits.size());
  }
  void numbers(const tensor::Shape& shape) {
    text_ += '[';
    for (size_t i = 0; i < shape.size(); ++i) {
      if (i != 0) text_ += ", ";
      number(shape[i]);
    }
    text_ += ']';
  }
  void place(const char* name, const tensor::FileRange& range) {
    if (range.length == 0) return;
    text_ += ", \"file\": ";
    append_json_string(text_, catalog_.files[range.file].path);
    text_ += std::string(", \"") + name + "\": [";
    number(range.offset);
    text_ += ", ";
    number(range.length);
    text_ += ']';
  }
  void tensor(const tensor::Tensor& t) {
    text_ += "  {\"key\": ";
    append_json_string(text_, t.key);
    text_ += ", \"dtype\": \"";
    text_ += tensor::dtype_name(t.dtype);
    text_ += "\", \"shape\": ";
    numbers(t.shape);
    text_ += ", \"bytes\": ";
    number(t.bytes());
    text_ += ", \"shards\": [";
    for (size_t i = 0; i < t.shards.size(); ++i) {
      if (i != 0) text_ += ", ";
      shard(t.shards[i]);
      flush(1 << 16);
    }
    text_ += "]}";
  }
  /// `range`: exactly the shard's bytes. `item`: the record around them, where they were not looked up.
  void shard(const tensor::Shard& s) {
    text_ += "{\"offset\": ";
    numbers(s.offset);
    text_ += ", \"shape\": ";
    numbers(s.shape);
    if (s.where.length != 0) place("range", s.where);
    else place("item", s.item);
    if (!s.stored_shape.empty()) {
      text_ += ", \"stored_shape\": ";
      numbers(s.stored_shape);
    }
    if (s.encoding != tensor::Encoding::kRaw)
      text_ += s.encoding == tensor::Encoding::kFill ? ", \"encoding\": \"fill\"" : ", \"encoding\": \"encoded\"";
    text_ += '}';
  }
  void strings(const char* name, const std::vector<std::string>& lines) {
    text_ += std::string("],\n\"") + name + "\": [";
    for (size_t i = 0; i < lines.size(); ++i) text_ += (i == 0 ? "" : ", ") + json_string(lines[i]);
  }

  Console& out_;
  const tensor::Catalog& catalog_;
  std::string text_;
};

Result<void> run_load_metadata(Context& context, const LoadMetadataOptions& options) {
  if (options.rank && options.plan.empty()) return fail(Code::kUsage, "", "--rank is for --plan");
  if (options.common && !options.plan.empty())
    return fail(Code::kUsage, "", "--common and --plan cannot be asked for at once");
  if (store::ImageReader::looks_like_image(options.path)) {
    if (options.globs.empty() && !options.common && options.plan.empty())
      return load_image_metadata(context, options.path);
    return fail(Code::kUsage, options.path,
                "is a process image: it has neither keys to choose from nor a common state");
  }
  if (!options.plan.empty())
    return print_plan(context, {options.path, options.from, options.plan, options.globs, options.rank});
  CKPT_TRY_ASSIGN(tensor::Catalog catalog, open_metadata(options.path, options.from));
  for (const std::string& text : texts_of(catalog.damage))
    context.out.info("warning: damaged: " + escape_for_terminal(text));
  std::string common;
  if (options.common) {
    pickle::RenderOptions render;
    render.indent = false;
    common = "null";
    if (catalog.common) {
      CKPT_TRY_ASSIGN(common, formats::common_state_json(catalog, render));
    }
  }
  Document(context.out, catalog).print(options.globs, common);
  return {};
}

}  // namespace

Command::Run add_load_metadata(VerbOptions& app) {
  auto options = std::make_shared<LoadMetadataOptions>();
  app.add_option("path", options->path, "A model checkpoint or a process image").type_name("PATH").required();
  add_from(app, options->from);
  app.add_option("--key", options->globs, "Only keys that match: * inside one part, ** across dots; may be repeated")
      .type_name("GLOB");
  app.add_flag("--common", options->common, "With the common state");
  app.add_option("--plan", options->plan,
                 "What each rank of another layout would read: a JSON file, as the man page describes it")
      .type_name("FILE");
  app.add_option("--rank", options->rank, "Of --plan only this rank").type_name("N");
  return [options](Context& context) { return run_load_metadata(context, *options); };
}

}  // namespace ckpt::cli
