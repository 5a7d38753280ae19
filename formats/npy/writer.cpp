#include "formats/npy/writer.h"

#include "formats/npy/header.h"
#include "formats/path_keys.h"
#include "lib/base/json_text.h"

namespace ckpt::formats {

namespace {

using tensor::OutputFile;
using tensor::Part;
using tensor::Piece;
using tensor::Target;

constexpr uint64_t kLarge =
    1 << 20;  ///< from this size on the elements begin at a page, so that file systems can share blocks
constexpr size_t kAlignment = 64, kLargeAlignment = 4096;

class NpyLayout : public tensor::Layout {
 public:
  explicit NpyLayout(const tensor::Selection& selection) : selection_(selection) {}

  Result<void> plan(const WriteOptions& options) {
    CKPT_TRY(refuse_what_is_no_tensor(selection_, "npy"));
    CKPT_TRY_ASSIGN(std::string note, check_path_keys(selection_, {"npy", ".npy", "", ""}));
    if (!note.empty()) notes.push_back(std::move(note));
    for (const Target& target : selection_.tensors) {
      CKPT_TRY(check_source(*selection_.source, selection_.tensor(target), tensor::decode_budget(options.max_memory)));
      const size_t index = files.size();
      files.push_back({target.key + ".npy", index, index + 1, header_of(target).size() + target.bytes(), {}});
      payload_bytes += target.bytes();
      foreign_ += has_numpy_type(target.dtype) ? 0 : 1;
    }
    shards = files.size();
    if (foreign_ > 0 || files.empty()) {
      OutputFile types{std::string(kNpyTypes), 0, 0, 16 + 64 * foreign_, {}};
      types.generate = [this](const OutputFile::Sink& sink) { return write_types(sink); };
      files.push_back(std::move(types));
    }
    if (foreign_ > 0)
      notes.push_back(std::to_string(foreign_) + " of " + std::to_string(shards) +
                      " tensors have types that numpy lacks: they are void there, dtypes.json names them");
    last_file = files.back().name;
    return {};
  }

  uint64_t piece_size(size_t index) const override { return files[index].size; }

  Result<Piece> piece(size_t index) const override {
    const Target& target = selection_.tensors[index];
    Piece out;
    out.parts.push_back(Part::of(header_of(target)));
    out.parts.push_back(Part::of(target, {tensor::Shape(target.shape.size(), 0), target.shape}));
    return out;
  }

 private:
  static std::string header_of(const Target& target) {
    return npy_header(target.dtype, target.shape, target.bytes() >= kLarge ? kLargeAlignment : kAlignment);
  }

  Result<void> write_types(const OutputFile::Sink& sink) const {
    std::string text = "{";
    for (const Target& target : selection_.tensors) {
      if (has_numpy_type(target.dtype)) continue;
      text += text.size() == 1 ? "\n  " : ",\n  ";
      (void)try_append_ascii_json_string(text, target.key);
      text += ": \"" + std::string(dtype_name(target.dtype)) + "\"";
    }
    return sink(text + "\n}\n");
  }

  const tensor::Selection& selection_;
  uint64_t foreign_ = 0;
};

}  // namespace

Result<std::unique_ptr<tensor::Layout>> plan_npy(const tensor::Selection& selection, const WriteOptions& options) {
  auto out = std::make_unique<NpyLayout>(selection);
  CKPT_TRY(out->plan(options));
  return std::unique_ptr<tensor::Layout>(std::move(out));
}

}  // namespace ckpt::formats
