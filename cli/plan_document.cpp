#include "cli/plan_document.h"

#include <fmt/format.h>

#include "cli/model_view.h"
#include "lib/base/io.h"
#include "lib/base/json_text.h"
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
    text_ = "{\"schema\": \"ckpt.load-metadata/1\", \"kind\": \"plan\", \"format\": " + json_string(catalog_.format) +
            ", \"path\": " + json_string(catalog_.root.string()) + ",\n\"world\": {";
    for (size_t i = 0; i < layout_.world.size(); ++i) {
      text_ += (i == 0 ? "" : ", ") + json_string(layout_.world[i].name) + fmt::format(": {}", layout_.world[i].size);
    }
    text_ += "}, \"unmatched\": [";
    for (size_t i = 0; i < unmatched_.size(); ++i) text_ += (i == 0 ? "" : ", ") + json_string(unmatched_[i]->key);
    text_ += "],\n\"ranks\": [";
    const uint64_t first = only.value_or(0), end = only ? *only + 1 : layout_.ranks();
    for (uint64_t rank = first; rank < end && !context_.out.closed(); ++rank) {
      CKPT_TRY(context_.cancel.check());
      text_ += rank == first ? "\n" : ",\n";
      CKPT_TRY(print_rank(rank));
    }
    text_ += "]}\n";
    context_.out.data(text_);
    return {};
  }

 private:
  struct Planned {
    const tensor::Tensor* tensor;
    const model::LayoutRule* rule;
  };

  Result<void> print_rank(uint64_t rank) {
    text_ += fmt::format("{{\"rank\": {}, \"at\": {{", rank);
    for (size_t i = 0; i < layout_.world.size(); ++i) {
      text_ +=
          (i == 0 ? "" : ", ") + json_string(layout_.world[i].name) + fmt::format(": {}", layout_.coordinate(rank, i));
    }
    text_ += "}, \"tensors\": [";
    const char* separator = "\n";
    uint64_t needed = 0, read = 0;
    for (const Planned& p : planned_) {
      CKPT_TRY_ASSIGN(auto boxes, model::boxes_of_rank(layout_, *p.rule, rank, *p.tensor));
      if (boxes.empty()) continue;
      text_ += separator;
      separator = ",\n";
      text_ += "  {\"key\": ";
      append_json_string(text_, p.tensor->key);
      text_ += ", \"boxes\": [";
      for (size_t i = 0; i < boxes.size(); ++i) {
        text_ += i == 0 ? "{\"offset\": " : ", {\"offset\": ";
        append_json_numbers(text_, boxes[i].offset);
        text_ += ", \"shape\": ";
        append_json_numbers(text_, boxes[i].shape);
        text_ += ", \"reads\": [";
        needed += tensor::element_count(boxes[i].shape).value_or(0) * tensor::item_size(p.tensor->dtype);
        read += print_reads(model::reads_of(*p.tensor, boxes[i]));
        text_ += "]}";
      }
      text_ += "]}";
      if (text_.size() > 1 << 16) {
        context_.out.data(text_);
        text_.clear();
      }
    }
    text_ += fmt::format("], \"bytes\": {}, \"read\": {}}}", needed, read);
    return {};
  }

  uint64_t print_reads(const std::vector<model::StridedRead>& reads) {
    uint64_t bytes = 0;
    for (const model::StridedRead& read : reads) {
      if (&read != &reads.front()) text_ += ", ";
      text_ += "{\"file\": ";
      append_json_string(text_, catalog_.files[read.range.file].path);
      text_ += fmt::format(", \"offset\": {}, \"length\": {}", read.range.offset, read.range.length);
      if (!read.repeat.empty()) {
        text_ += ", \"repeat\": [";
        for (const auto& r : read.repeat)
          text_ += fmt::format("{}[{}, {}]", &r == &read.repeat.front() ? "" : ", ", r.count, r.stride);
        text_ += ']';
      }
      if (read.whole) text_ += ", \"encoded\": true";
      text_ += '}';
      bytes += read.bytes();
    }
    return bytes;
  }

  Context& context_;
  const tensor::Catalog& catalog_;
  const model::RankLayout& layout_;
  std::vector<Planned> planned_;
  std::vector<const tensor::Tensor*> unmatched_;
  std::string text_;
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
