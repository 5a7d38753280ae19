#include "cli/plan_document.h"

#include <fmt/format.h>

#include <array>

#include "cli/model_view.h"
#include "lib/base/io.h"
#include "lib/base/json_writer.h"
#include "lib/model/rank_plan.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kMaxLayout = 16 << 20;

class PlanDocument {
 public:
  PlanDocument(Context& context, const tensor::Catalog& catalog, const model::RankLayout& layout,
               const std::vector<std::string>& globs)
      : context_(context), catalog_(catalog), layout_(layout) {
    for (const tensor::Tensor& t : catalog.tensors) {
      if (!matches_any(globs, t.key)) continue;
      const model::LayoutRule* rule = layout.rule(t.key);
      if (rule == nullptr) unmatched_.push_back(&t);
      else planned_.push_back({&t, rule});
    }
  }

  Result<void> print(std::optional<uint64_t> only) {
    // A layout that does not fit is refused before anything is printed. Coordinates do not matter for that.
    for (const Planned& p : planned_) {
      CKPT_TRY(tensor::check_readable(catalog_, *p.tensor));
      auto boxes = model::boxes_of_rank(layout_, *p.rule, 0, *p.tensor);
      if (!boxes) return std::move(boxes).error();
    }
    json_.open('{');
    json_.members("schema", "ckpt.load-metadata/1", "kind", "plan", "format", catalog_.format,
                  "path", catalog_.root.native());
    json_.open("world", '{');
    for (const auto& dimension : layout_.world) {
      json_.key_text(dimension.name);
      json_.number(dimension.size);
    }
    json_.close();
    json_.open("unmatched", '[');
    for (const tensor::Tensor* t : unmatched_) json_.string(t->key);
    json_.close();
    json_.open("ranks", '[');
    const uint64_t first = only.value_or(0), end = only ? *only + 1 : layout_.ranks();
    for (uint64_t rank = first; rank < end && !context_.out.closed(); ++rank) {
      CKPT_TRY(context_.cancel.check());
      CKPT_TRY(print_rank(rank));
    }
    context_.out.data(std::move(json_).finish());
    return {};
  }

 private:
  struct Planned {
    const tensor::Tensor* tensor;
    const model::LayoutRule* rule;
  };

  Result<void> print_rank(uint64_t rank) {
    json_.open('{');
    json_.member("rank", rank);
    json_.open("at", '{');
    for (size_t i = 0; i < layout_.world.size(); ++i) {
      json_.key_text(layout_.world[i].name);
      json_.number(layout_.coordinate(rank, i));
    }
    json_.close();
    json_.open("tensors", '[');
    uint64_t needed = 0, read = 0;
    for (const Planned& p : planned_) {
      CKPT_TRY_ASSIGN(auto boxes, model::boxes_of_rank(layout_, *p.rule, rank, *p.tensor));
      if (boxes.empty()) continue;
      json_.row('{');
      json_.member("key", p.tensor->key);
      json_.open("boxes", '[');
      for (const auto& box : boxes) {
        needed += tensor::element_count(box.shape).value_or(0) * tensor::item_size(p.tensor->dtype);
        json_.open('{');
        json_.members("offset", box.offset, "shape", box.shape);
        read += print_reads(model::reads_of(*p.tensor, box));
        json_.close();
      }
      json_.close();
      json_.close();
      if (json_.full()) context_.out.data(json_.take());
    }
    json_.close();
    json_.members("bytes", needed, "read", read);
    json_.close();
    return {};
  }

  /// Returns the bytes that are read.
  uint64_t print_reads(const std::vector<model::StridedRead>& reads) {
    uint64_t bytes = 0;
    json_.open("reads", '[');
    for (const model::StridedRead& read : reads) {
      json_.open('{');
      json_.members("file", catalog_.files[read.range.file].path, "offset", read.range.offset,
                    "length", read.range.length);
      if (!read.repeat.empty()) {
        json_.open("repeat", '[');
        for (const auto& r : read.repeat) json_.value(std::array{r.count, r.stride});
        json_.close();
      }
      if (read.whole) json_.member("encoded", true);
      json_.close();
      bytes += read.bytes();
    }
    json_.close();
    return bytes;
  }

  Context& context_;
  const tensor::Catalog& catalog_;
  const model::RankLayout& layout_;
  std::vector<Planned> planned_;
  std::vector<const tensor::Tensor*> unmatched_;
  JsonWriter json_;
};

}  // namespace

Result<void> print_plan(Context& context, const PlanOptions& options) {
  CKPT_TRY_ASSIGN(std::string text, io::read_file(options.layout, kMaxLayout));
  auto layout = model::parse_layout(text);
  if (!layout) {
    layout.error().message =
        layout.error().subject + (layout.error().subject.empty() ? "" : ": ") + layout.error().message;
    layout.error().subject = options.layout;
    return std::move(layout).error();
  }
  if (options.rank && *options.rank >= layout->ranks()) {
    return fail(Code::kUsage, options.layout, fmt::format("has ranks 0 to {}", layout->ranks() - 1));
  }
  CKPT_TRY_ASSIGN(tensor::Catalog catalog, open_data(options.path, options.from));
  return PlanDocument(context, catalog, *layout, options.globs).print(options.rank);
}

}  // namespace ckpt::cli
