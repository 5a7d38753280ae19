#include "lib/model/report/report.h"

#include <fmt/format.h>

#include <cmath>

#include "lib/model/report/page.h"
#include "lib/base/json_text.h"
#include "lib/tensor/values.h"

namespace ckpt::model {

namespace {

/// JSON inside a script element: "<" must not end it ("</script>") nor begin a comment ("<!--").
void append_text(std::string& out, std::string_view text) {
  const size_t begin = out.size();
  append_json_string(out, text);
  for (size_t at = out.find('<', begin); at != std::string::npos; at = out.find('<', at + 6))
    out.replace(at, 1, "\\u003c");
}

void append_numbers(std::string& out, const tensor::Shape& numbers) {
  out += '[';
  for (size_t i = 0; i < numbers.size(); ++i) out += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
  out += ']';
}

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

class Page {
 public:
  Page(const Report& report, const std::function<Result<void>(std::string_view)>& write)
      : report_(report), write_(write) {}

  Result<void> print() {
    constexpr std::string_view kMark = "@DATA@";
    const std::string_view page = kReportPage;
    const size_t mark = page.find(kMark);
    CKPT_ASSERT(mark != std::string_view::npos);
    text_ = page.substr(0, mark);
    CKPT_TRY(data());
    text_ += page.substr(mark + kMark.size());
    return flush(0);
  }

 private:
  Result<void> flush(size_t limit) {
    if (text_.size() <= limit) return {};
    auto done = write_(text_);
    text_.clear();
    return done;
  }

  /// Tensors as arrays, [key, dtype, shape, bytes, shards, statistics]: a page of 100,000 of them stays small.
  Result<void> data() {
    const tensor::Catalog& catalog = *report_.catalog;
    text_ += "{\"format\":";
    append_text(text_, catalog.format);
    text_ += ",\"path\":";
    append_text(text_, catalog.root.string());
    text_ += fmt::format(",\"objects\":{},\"stats\":{},\"tensors\":[", catalog.objects.size(), !report_.stats.empty());
    for (size_t i = 0; i < report_.tensors.size(); ++i) {
      const tensor::Tensor& t = *report_.tensors[i];
      text_ += i == 0 ? "\n[" : ",\n[";
      append_text(text_, t.key);
      text_ += fmt::format(",\"{}\",", tensor::dtype_name(t.dtype));
      append_numbers(text_, t.shape);
      text_ += fmt::format(",{},{}", t.bytes(), t.shards.size());
      if (!report_.stats.empty()) {
        const Stats& s = report_.stats[i];
        const bool any = s.finite() != 0;
        text_ += fmt::format(",{},{},{},{},{},{},{}", any ? number(static_cast<double>(s.min)) : "null",
                             any ? number(static_cast<double>(s.max)) : "null", any ? number(s.mean) : "null",
                             any ? number(s.deviation()) : "null", s.nans, s.infs, s.zeros);
      }
      text_ += ']';
      CKPT_TRY(flush(1 << 16));
    }
    text_ += "],\"files\":[";
    for (size_t i = 0; i < report_.files.size(); ++i) {
      const FileUsage& file = report_.files[i];
      text_ += i == 0 ? "\n[" : ",\n[";
      append_text(text_, file.path);
      text_ +=
          fmt::format(",{},{},{},{},{}]", file.size, file.referred, file.tensors, file.shards, file.missing ? 1 : 0);
      CKPT_TRY(flush(1 << 16));
    }
    text_ += ']';
    if (report_.diff != nullptr) CKPT_TRY(diff(*report_.diff));
    text_ += '}';
    return {};
  }

  /// Rows [key, what, detail, elements that differ, elements, greatest distance].
  Result<void> diff(const CatalogDiff& diff) {
    text_ += ",\"diff\":{\"other\":";
    append_text(text_, report_.other);
    text_ += fmt::format(",\"equal\":{},\"compared\":{},\"rows\":[", diff.equal(), diff.both.size());
    const char* separator = "\n";
    auto row = [&](const tensor::Tensor& t, const std::string& what, const std::string& detail, const TensorDiff* d) {
      text_ += separator;
      separator = ",\n";
      text_ += '[';
      append_text(text_, t.key);
      text_ += ',';
      append_text(text_, what);
      text_ += ',';
      append_text(text_, detail);
      text_ += d == nullptr ? ",0,0,0]" : fmt::format(",{},{},{}]", d->different, d->elements, number(d->max_abs));
      return flush(1 << 16);
    };
    for (const tensor::Tensor* t : diff.only_a) CKPT_TRY(row(*t, "only here", described(*t), nullptr));
    for (const tensor::Tensor* t : diff.only_b) CKPT_TRY(row(*t, "only there", described(*t), nullptr));
    for (const TensorDiff& d : diff.both) {
      if (d.equal()) continue;
      std::string what = d.same_shape ? "" : "shape ";
      if (!d.same_dtype) what += "dtype ";
      if (d.different != 0) what += "values ";
      if (!d.unreadable.empty()) what += "not readable ";
      what.pop_back();
      const bool other = !d.same_shape || !d.same_dtype;
      CKPT_TRY(row(*d.a, what,
                   !d.unreadable.empty() ? d.unreadable
                   : other               ? described(*d.a) + " / " + described(*d.b)
                                         : "",
                   &d));
    }
    text_ += "]}";
    return {};
  }

  static std::string described(const tensor::Tensor& t) {
    std::string out(tensor::dtype_name(t.dtype));
    for (size_t i = 0; i < t.shape.size(); ++i) out += (i == 0 ? " " : "x") + std::to_string(t.shape[i]);
    return out;
  }

  const Report& report_;
  const std::function<Result<void>(std::string_view)>& write_;
  std::string text_;
};

}  // namespace

Result<void> write_report(const Report& report, const std::function<Result<void>(std::string_view)>& write) {
  return Page(report, write).print();
}

}  // namespace ckpt::model
