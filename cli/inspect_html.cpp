// inspect --html: the page, put in its place when it is complete.
#include <fcntl.h>

#include "cli/app.h"
#include "cli/inspect_html.h"
#include "cli/inspect_model.h"
#include "cli/model_view.h"
#include "formats/common_state.h"
#include "lib/base/io.h"
#include "lib/base/replace_file.h"
#include "lib/base/text.h"
#include "lib/model/report/report.h"

namespace ckpt::cli {

Result<void> put_page(Console& out, const std::string& target,
                      const std::function<Result<void>(const model::PageSink& write)>& page) {
  if (target == "-") {
    return page([&](std::string_view text) -> Result<void> {
      out.data(text);
      return {};
    });
  }
  uint64_t bytes = 0;
  auto write = [&](int fd) {
    return page([&](std::string_view text) {
      bytes += text.size();
      return io::write_all(fd, as_bytes(text), target);
    });
  };
  CKPT_TRY(io::replace_file(target, write, {0644, false}));
  out.info("wrote " + target + ": " + human_bytes(bytes));
  return {};
}

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
  if (auto common = formats::common_state_json(*view.catalog)) report.common = std::move(*common);
  report.version = short_version();
  CKPT_TRY(put_page(context.out, options.html,
                    [&](const model::PageSink& write) { return model::write_report(report, write); }));
  return report.diff == nullptr || diff.equal();
}

}  // namespace ckpt::cli
