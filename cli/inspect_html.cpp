// inspect --html: the page, put in its place when it is complete.
#include <fcntl.h>

#include "cli/inspect_model.h"
#include "cli/model_view.h"
#include "lib/base/io.h"
#include "lib/base/replace_file.h"
#include "lib/base/text.h"
#include "lib/model/report/report.h"

namespace ckpt::cli {

Result<bool> write_html(Context& context, const View& view, const InspectOptions& options) {
  CKPT_TRY_ASSIGN(std::vector<model::FileUsage> files, model::file_usage(*view.catalog));
  model::Report report;
  report.catalog = view.catalog;
  report.tensors = view.tensors;
  report.stats = view.stats;
  report.files = files;
  tensor::Catalog other;
  model::CatalogDiff diff;
  if (!options.diff.empty()) {
    CKPT_TRY_ASSIGN(other, open_data(options.diff));
    CKPT_TRY_ASSIGN(diff, run_diff(context, *view.catalog, other, options));
    report.diff = &diff;
    report.other = options.diff;
  }
  if (options.html == "-") {
    CKPT_TRY(model::write_report(report, [&](std::string_view text) -> Result<void> {
      context.out.data(text);
      return {};
    }));
    return report.diff == nullptr || diff.equal();
  }
  uint64_t bytes = 0;
  auto write = [&](int fd) {
    return model::write_report(report, [&](std::string_view text) {
      bytes += text.size();
      return io::write_all(fd, as_bytes(text), options.html);
    });
  };
  CKPT_TRY(io::replace_file(options.html, write, {0644, false}));
  context.out.info("wrote " + options.html + ": " + human_bytes(bytes));
  return report.diff == nullptr || diff.equal();
}

}  // namespace ckpt::cli
