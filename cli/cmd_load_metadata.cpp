// `ckpt load-metadata PATH`: JSON, and no tensor byte is read. Written as it is made: a checkpoint may have a million
// shards.
#include <array>

#include "cli/command.h"
#include "cli/inspect_image.h"
#include "cli/model_view.h"
#include "cli/plan_document.h"
#include "formats/common_state.h"
#include "lib/base/json_writer.h"
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
    json_.open('{');
    json_.members("schema", "ckpt.load-metadata/1", "kind", "model", "format", catalog_.format,
                  "path", catalog_.root.native());
    json_.feed("metadata", catalog_.metadata_json.empty() ? "{}" : catalog_.metadata_json);
    json_.open("tensors", '[');
    for (const tensor::Tensor& t : catalog_.tensors) {
      if (matches_any(globs, t.key)) tensor(t);
    }
    json_.close();
    json_.open("objects", '[');
    for (const tensor::Object& object : catalog_.objects) {
      if (!matches_any(globs, object.key)) continue;
      json_.row('{');
      json_.member("key", object.key);
      place("range", object.where);
      json_.close();
      flush();
    }
    json_.close();
    json_.members("unsupported", texts_of(catalog_.unsupported), "damage", texts_of(catalog_.damage),
                  "warnings", catalog_.warnings);
    if (!common.empty()) json_.feed("common", common);
    out_.data(std::move(json_).finish());
  }

 private:
  void flush() {
    if (json_.full()) out_.data(json_.take());
  }
  void place(const char* name, const tensor::FileRange& range) {
    if (range.length == 0) return;
    json_.members("file", catalog_.files[range.file].path, name, std::array{range.offset, range.length});
  }
  void tensor(const tensor::Tensor& t) {
    json_.row('{');
    json_.members("key", t.key, "dtype", tensor::dtype_name(t.dtype), "shape", t.shape, "bytes", t.bytes());
    json_.open("shards", '[');
    for (const tensor::Shard& s : t.shards) {
      shard(s);
      flush();
    }
    json_.close();
    json_.close();
    flush();
  }
  /// `range`: exactly the shard's bytes. `item`: the record around them, where they were not looked up.
  void shard(const tensor::Shard& s) {
    json_.open('{');
    json_.members("offset", s.offset, "shape", s.shape);
    if (s.where.length != 0) place("range", s.where);
    else place("item", s.item);
    if (!s.stored_shape.empty()) json_.member("stored_shape", s.stored_shape);
    if (s.encoding != tensor::Encoding::kRaw)
      json_.member("encoding", s.encoding == tensor::Encoding::kFill ? "fill" : "encoded");
    json_.close();
  }

  Console& out_;
  const tensor::Catalog& catalog_;
  JsonWriter json_;
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
  app.add_saved("path", Saved::kEither, options->path, "A model checkpoint or a process image")
      .type_name("PATH|URL")
      .required();
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
