#include "lib/model/report/report.h"

#include <cmath>

#include "lib/base/clock.h"
#include "lib/base/json_writer.h"
#include "lib/tensor/values.h"

namespace ckpt::model {

namespace {

class ReportData {
 public:
  ReportData(const Report& report, const PageSink& write) : report_(report), write_(write) {}

  Result<void> print() {
    CKPT_TRY(data());
    return flush();
  }

 private:
  Result<void> flush() { return write_(escape_for_page(json_.take())); }
  Result<void> flush_if_full() { return json_.full() ? flush() : Result<void>(); }

  /// Tensors as arrays, [key, dtype, shape, bytes, shards, statistics]: a page of 100,000 of them stays small.
  Result<void> data() {
    const tensor::Catalog& catalog = *report_.catalog;
    json_.open('{');
    json_.members("format", catalog.format, "path", catalog.root.native(), "made", rfc3339_now(), "version",
                  report_.version, "common", report_.common, "stats", !report_.stats.empty());
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
    json_.open("objects", '[');
    for (const tensor::Object& object : catalog.objects) {
      json_.row('[');
      json_.values(object.key, object.inline_bytes.empty() ? object.where.length : object.inline_bytes.size());
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
  const PageSink& write_;
  JsonWriter json_;
};

}  // namespace

Result<void> write_page(std::string_view page, const PageSink& write,
                        const std::function<Result<void>(const PageSink& write)>& data) {
  constexpr std::string_view kMark = "@DATA@";
  const size_t mark = page.find(kMark);
  CKPT_ASSERT(mark != std::string_view::npos);
  CKPT_TRY(write(page.substr(0, mark)));
  CKPT_TRY(data(write));
  return write(page.substr(mark + kMark.size()));
}

std::string escape_for_page(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (char c : json) {
    if (c == '<') out += "\\u003c";
    else out += c;
  }
  return out;
}

Result<void> write_report(const Report& report, const PageSink& write) {
  return write_page(kCheckpointPage, write, [&](const PageSink& sink) { return ReportData(report, sink).print(); });
}

}  // namespace ckpt::model
