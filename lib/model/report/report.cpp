#include "lib/model/report/report.h"

#include <cmath>

#include "lib/model/report/page.h"
#include "lib/base/json_writer.h"
#include "lib/tensor/values.h"

namespace ckpt::model {

namespace {

class Page {
 public:
  Page(const Report& report, const std::function<Result<void>(std::string_view)>& write)
      : report_(report), write_(write) {}

  Result<void> print() {
    constexpr std::string_view kMark = "@DATA@";
    const std::string_view page = kReportPage;
    const size_t mark = page.find(kMark);
    CKPT_ASSERT(mark != std::string_view::npos);
    CKPT_TRY(write_(page.substr(0, mark)));
    CKPT_TRY(data());
    CKPT_TRY(flush());
    return write_(page.substr(mark + kMark.size()));
  }

 private:
  /// JSON inside a script element: "<", which stands in strings only, must not end it ("</script>") nor begin a comment
  /// ("<!--").
  Result<void> flush() {
    std::string text;
    for (char c : json_.take()) {
      if (c == '<') text += "\\u003c";
      else text += c;
    }
    return write_(text);
  }
  Result<void> flush_if_full() { return json_.full() ? flush() : Result<void>(); }

  /// Tensors as arrays, [key, dtype, shape, bytes, shards, statistics]: a page of 100,000 of them stays small.
  Result<void> data() {
    const tensor::Catalog& catalog = *report_.catalog;
    json_.open('{');
    json_.members("format", catalog.format, "path", catalog.root.native(), "objects", catalog.objects.size(),
                  "stats", !report_.stats.empty());
    json_.open("tensors", '[');
    for (size_t i = 0; i < report_.tensors.size(); ++i) {
      const tensor::Tensor& t = *report_.tensors[i];
      json_.row('[');
      json_.values(t.key, tensor::dtype_name(t.dtype), t.shape, t.bytes(), t.shards.size());
      if (!report_.stats.empty()) statistics(report_.stats[i]);
      json_.close();
      CKPT_TRY(flush_if_full());
    }
    json_.close();
    json_.open("files", '[');
    for (const FileUsage& file : report_.files) {
      json_.row('[');
      json_.values(file.path, file.size, file.referred, file.tensors, file.shards, file.missing ? 1 : 0);
      json_.close();
      CKPT_TRY(flush_if_full());
    }
    json_.close();
    if (report_.diff != nullptr) CKPT_TRY(diff(*report_.diff));
    json_.close();
    return {};
  }

  void statistics(const Stats& s) {
    const bool any = s.finite() != 0;
    const double min = static_cast<double>(s.min), max = static_cast<double>(s.max);
    for (double x : {min, max, s.mean, s.deviation()}) json_.real(any ? x : NAN);
    json_.values(s.nans, s.infs, s.zeros);
  }

  /// Rows [key, what, detail, elements that differ, elements, greatest distance].
  Result<void> diff(const CatalogDiff& diff) {
    json_.open("diff", '{');
    json_.members("other", report_.other, "equal", diff.equal(), "compared", diff.both.size());
    json_.open("rows", '[');
    auto row = [&](const tensor::Tensor& t, const std::string& what, const std::string& detail, const TensorDiff& d) {
      json_.row('[');
      json_.values(t.key, what, detail, d.different, d.elements, d.max_abs);
      json_.close();
      return flush_if_full();
    };
    for (const tensor::Tensor* t : diff.only_a) CKPT_TRY(row(*t, "only here", described(*t), {}));
    for (const tensor::Tensor* t : diff.only_b) CKPT_TRY(row(*t, "only there", described(*t), {}));
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
                   d));
    }
    json_.close();
    json_.close();
    return {};
  }

  static std::string described(const tensor::Tensor& t) {
    std::string out(tensor::dtype_name(t.dtype));
    for (size_t i = 0; i < t.shape.size(); ++i) out += (i == 0 ? " " : "x") + std::to_string(t.shape[i]);
    return out;
  }

  const Report& report_;
  const std::function<Result<void>(std::string_view)>& write_;
  JsonWriter json_;
};

}  // namespace

Result<void> write_report(const Report& report, const std::function<Result<void>(std::string_view)>& write) {
  return Page(report, write).print();
}

}  // namespace ckpt::model
