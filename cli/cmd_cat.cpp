// `ckpt cat PATH KEY`: one tensor or object on standard output, streamed.
#include <unistd.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/model_view.h"
#include "formats/npy/header.h"
#include "lib/base/checked.h"
#include "lib/base/io.h"
#include "lib/model/slice.h"
#include "lib/store/image.h"
#include "lib/tensor/read.h"
#include "lib/tensor/selection.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kBlock = 1 << 20;

struct CatOptions {
  std::string path, key, slice, from = "auto";
  uint64_t max_memory = uint64_t{256} << 20;
  bool npy = false;
  bool force = false;
};

/// Bytes to read at once. An encoded shard is decoded as a whole: blocks as high as shards do that once and not once a
/// row.
uint64_t block_bytes(const tensor::Tensor& t, uint64_t max_memory) {
  uint64_t rows = 0;
  for (const tensor::Shard& shard : t.shards) {
    if (shard.encoding == tensor::Encoding::kEncoded && !shard.shape.empty()) rows = std::max(rows, shard.shape[0]);
  }
  if (rows == 0 || t.shape[0] == 0) return kBlock;
  const uint64_t budget = tensor::decode_budget(max_memory), decode = tensor::decode_memory(t);
  const uint64_t most = std::max(kBlock, budget - std::min(budget, decode));
  return std::clamp(checked_mul(t.bytes() / t.shape[0], rows).value_or(most), kBlock, most);
}

Result<void> cat_tensor(Context& context, const tensor::Catalog& catalog, const tensor::Tensor& t,
                        const CatOptions& options) {
  CKPT_TRY_ASSIGN(model::Slice slice, model::parse_slice(options.slice, t.shape));
  CKPT_TRY(tensor::check_readable(catalog, t));
  CKPT_TRY(tensor::DecodeLimit(options.max_memory).add(t));
  if (options.npy) context.out.data(formats::npy_header(t.dtype, slice.shape));
  tensor::Tensor part;
  part.dtype = t.dtype;
  part.shape = slice.region.shape;
  context.progress.begin("cat", part.bytes());
  tensor::FileCache files(catalog);
  tensor::RegionReader reader(catalog, files);
  tensor::RowMajorBlocks blocks(part, block_bytes(t, options.max_memory));
  std::vector<std::byte> buffer;
  while (auto block = blocks.next()) {
    for (size_t i = 0; i < block->offset.size(); ++i) block->offset[i] += slice.region.offset[i];
    buffer.resize(*tensor::element_count(block->shape) * tensor::item_size(t.dtype));
    CKPT_TRY(reader.read(t, *block, buffer));
    context.out.data(as_text(buffer));
    context.progress.advance(buffer.size());
    if (context.out.closed()) return {};
    CKPT_TRY(context.cancel.check());
  }
  return {};
}

Result<void> cat_object(Context& context, const tensor::Catalog& catalog, const tensor::Object& object,
                        const CatOptions& options) {
  if (options.npy || !options.slice.empty())
    return fail(Code::kUsage, object.key, "is an object: it has neither axes nor a dtype");
  if (!object.inline_bytes.empty()) {
    context.out.data(as_text(object.inline_bytes));
    return {};
  }
  if (object.where.file >= catalog.files.size()) return fail(Code::kCorrupt, object.key, "its bytes are missing");
  CKPT_TRY_ASSIGN(UniqueFd fd, catalog.open_file(object.where.file));
  std::vector<std::byte> buffer;
  for (uint64_t done = 0; done < object.where.length && !context.out.closed();) {
    CKPT_TRY(context.cancel.check());
    buffer.resize(std::min(kBlock, object.where.length - done));
    CKPT_TRY(io::pread_exact(fd.get(), buffer, object.where.offset + done, catalog.files[object.where.file].path));
    context.out.data(as_text(buffer));
    done += buffer.size();
  }
  return {};
}

template <class Entry>
const Entry* find(const std::vector<Entry>& sorted, const std::string& key) {
  auto at = std::lower_bound(sorted.begin(), sorted.end(), key,
                             [](const Entry& e, const std::string& k) { return e.key < k; });
  return at != sorted.end() && at->key == key ? &*at : nullptr;
}

Result<void> run_cat(Context& context, const CatOptions& options) {
  if (store::ImageReader::looks_like_image(options.path)) {
    return fail(Code::kUsage, options.path, "is a process image: cat prints tensors of model checkpoints");
  }
  CKPT_TRY_ASSIGN(tensor::Catalog catalog, open_data(options.path, options.from));
  const tensor::Tensor* t = find(catalog.tensors, options.key);
  const tensor::Object* object = t != nullptr ? nullptr : find(catalog.objects, options.key);
  for (const tensor::Unreadable& entry : catalog.unsupported) {
    if (t == nullptr && object == nullptr && entry.key == options.key)
      return fail(Code::kUnsupported, entry.key, "cannot be read: " + entry.why);
  }
  if (t == nullptr && object == nullptr) {
    return Error(Code::kNotFound, options.path, "holds nothing of the name " + options.key)
        .with_hint("ckpt inspect lists the names");
  }
  if (!options.force && ::isatty(STDOUT_FILENO) != 0) {
    return Error(Code::kUsage, options.key, "its bytes would go to a terminal")
        .with_hint("redirect them, or say --force");
  }
  return t != nullptr ? cat_tensor(context, catalog, *t, options) : cat_object(context, catalog, *object, options);
}

}  // namespace

Command::Run add_cat(VerbOptions& app) {
  auto options = std::make_shared<CatOptions>();
  app.add_saved("path", Saved::kCheckpoint, options->path, "A model checkpoint").type_name("PATH|URL").required();
  app.add_option("key", options->key, "A tensor or an object").type_name("KEY").required();
  add_from(app, options->from);
  add_max_memory(app, options->max_memory);
  app.add_option("--slice", options->slice, "The part to print, as numpy writes it: 0:10,:,-1").type_name("SLICE");
  app.add_flag("--npy", options->npy, "As a .npy file; without it the bare elements, little endian, row-major");
  app.add_flag("--force", options->force, "To a terminal, too");
  return [options](Context& context) { return run_cat(context, *options); };
}

}  // namespace ckpt::cli
