// inspect --diff: two checkpoints side by side.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/inspect_model.h"
#include "cli/model_view.h"
#include "cli/plural.h"
#include "lib/base/text.h"

namespace ckpt::cli {

namespace {

using model::CatalogDiff;
using model::TensorDiff;

std::string what_text(const tensor::Tensor& t) {
  return std::string(tensor::dtype_name(t.dtype)) + " " + shape_text(t.shape);
}

/// A row-major index as one per axis.
std::vector<uint64_t> place_of(const tensor::Shape& shape, uint64_t index) {
  std::vector<uint64_t> out(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    out[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return out;
}

size_t count_different(const CatalogDiff& diff) {
  return static_cast<size_t>(
      std::count_if(diff.both.begin(), diff.both.end(), [](const TensorDiff& d) { return !d.equal(); }));
}

void print_text(Console& out, const CatalogDiff& diff, const InspectOptions& options) {
  std::vector<std::vector<std::string>> rows;
  for (const tensor::Tensor* t : diff.only_a)
    rows.push_back({t->key, "only in " + options.path, what_text(*t), "", "", ""});
  for (const tensor::Tensor* t : diff.only_b)
    rows.push_back({t->key, "only in " + options.diff, what_text(*t), "", "", ""});
  for (const TensorDiff& d : diff.both) {
    if (d.equal()) continue;
    std::string what, detail;
    auto add = [&](const char* word) { what += (what.empty() ? "" : ", ") + std::string(word); };
    if (!d.same_shape) add("shape");
    if (!d.same_dtype) add("dtype");
    if (d.different != 0) add("values");
    if (!d.unreadable.empty()) add("not readable");
    if (!d.same_shape || !d.same_dtype) detail = what_text(*d.a) + " / " + what_text(*d.b);
    if (!d.unreadable.empty()) detail = d.unreadable;
    std::string first = d.first ? fmt::format("{}", fmt::join(place_of(d.a->shape, *d.first), ",")) : "";
    rows.push_back({d.a->key, what, detail, d.different != 0 ? fmt::format("{} of {}", d.different, d.elements) : "",
                    d.different != 0 ? fmt::format("{:.6g}", d.max_abs) : "", first});
  }
  for (const tensor::Unreadable& entry : diff.unreadable)
    rows.push_back({entry.key, "cannot be compared", entry.why, "", "", ""});
  if (!rows.empty()) {
    out.table({"TENSOR", "DIFFERS IN", "", "ELEMENTS", "MAX ABS", "FIRST AT"}, rows, {3, 4});
    out.data("\n");
  }
  out.data(fmt::format("{} in both: {} equal, {} different; {} only in the first, {} only in the second{}\n",
                       counted(diff.both.size(), "tensor"), diff.both.size() - count_different(diff),
                       count_different(diff), diff.only_a.size(), diff.only_b.size(),
                       diff.unreadable.empty() ? "" : fmt::format("; {} cannot be compared", diff.unreadable.size())));
}

void describe(JsonWriter& json, const char* name, const tensor::Tensor& t) {
  json.open(name, '{');
  json.members("dtype", tensor::dtype_name(t.dtype), "shape", t.shape);
  json.close();
}

void print_json(Console& out, const tensor::Catalog& a, const tensor::Catalog& b, const CatalogDiff& diff) {
  JsonWriter json = begin_document(a);
  json.open("other", '{');
  json.members("format", b.format, "path", b.root.native());
  json.close();
  json.members("equal", diff.equal(), "compared", diff.both.size(), "different", count_different(diff));
  json.open("diff", '[');
  auto begin = [&](const std::string& key) {
    if (json.full()) out.data(json.take());
    json.row('{');
    json.member("key", key);
  };
  auto only = [&](const char* name, const std::vector<const tensor::Tensor*>& tensors) {
    for (const tensor::Tensor* t : tensors) {
      begin(t->key);
      describe(json, name, *t);
      json.close();
    }
  };
  only("a", diff.only_a);
  only("b", diff.only_b);
  for (const TensorDiff& d : diff.both) {
    if (d.equal()) continue;
    begin(d.a->key);
    describe(json, "a", *d.a);
    describe(json, "b", *d.b);
    json.members("elements", d.elements, "different", d.different, "max_abs", d.max_abs);
    if (d.first) json.member("first", place_of(d.a->shape, *d.first));
    if (!d.unreadable.empty()) json.member("unreadable", d.unreadable);
    json.close();
  }
  for (const tensor::Unreadable& entry : diff.unreadable) {
    begin(entry.key);
    json.member("unreadable", entry.why);
    json.close();
  }
  out.data(std::move(json).finish());
}

bool parse_number(std::string_view text, double& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

Result<std::optional<model::Tolerance>> parse_tolerance(const std::string& text) {
  if (text.empty()) return std::optional<model::Tolerance>();
  model::Tolerance out;
  const std::string_view view = text;
  const size_t comma = view.find(',');
  if (!parse_number(view.substr(0, comma), out.absolute) ||
      (comma != std::string_view::npos && !parse_number(view.substr(comma + 1), out.relative))) {
    return fail(Code::kUsage, text, "is no tolerance: ABSOLUTE or ABSOLUTE,RELATIVE, as 1e-6 or 0,1e-3");
  }
  return std::optional(out);
}

Result<CatalogDiff> run_diff(Context& context, const tensor::Catalog& a, const tensor::Catalog& b,
                             const InspectOptions& options) {
  CKPT_TRY_ASSIGN(auto tolerance, parse_tolerance(options.tolerance));
  model::DiffOptions how;
  how.tolerance = tolerance;
  how.wanted = [&](std::string_view key) { return matches_any(options.globs, key); };
  how.progress = &context.progress;
  how.cancel = &context.cancel;
  how.max_memory = options.max_memory;
  how.skip_unreadable = options.skip_unreadable;
  return model::compare_catalogs(a, b, how);
}

Result<void> inspect_diff(Context& context, const InspectOptions& options) {
  CKPT_TRY(parse_tolerance(options.tolerance));
  CKPT_TRY_ASSIGN(tensor::Catalog a, open_data(options.path, options.from));
  CKPT_TRY_ASSIGN(tensor::Catalog b, open_data(options.diff));
  CKPT_TRY_ASSIGN(CatalogDiff diff, run_diff(context, a, b, options));
  if (!options.globs.empty() && diff.both.empty() && diff.only_a.empty() && diff.only_b.empty() &&
      diff.unreadable.empty()) {
    return fail(Code::kNotFound, options.path, fmt::format("no key matches {}", fmt::join(options.globs, " ")));
  }
  if (context.out.json()) print_json(context.out, a, b, diff);
  else print_text(context.out, diff, options);
  if (!diff.equal()) return fail(Code::kMismatch, options.path, "is different from " + options.diff);
  return {};
}

}  // namespace ckpt::cli
