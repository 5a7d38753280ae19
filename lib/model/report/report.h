// A checkpoint as one HTML page that needs nothing but a browser: sizes, dtypes, statistics, files, differences.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "lib/model/diff.h"
#include "lib/model/stats.h"
#include "lib/model/usage.h"
#include "lib/tensor/catalog.h"

namespace ckpt::model {

/// What the page shows. Spans and pointers are borrowed; names are escaped, whatever is in them.
struct Report {
  const tensor::Catalog* catalog = nullptr;
  std::span<const tensor::Tensor* const> tensors;
  std::span<const Stats> stats;          ///< of `tensors`; empty: none were counted
  std::span<const FileUsage> files;
  const CatalogDiff* diff = nullptr;     ///< null: nothing was compared
  std::string other;                             ///< what it was compared with
};

/// Gives the page to `write` piece by piece, until it fails.
Result<void> write_report(const Report& report, const std::function<Result<void>(std::string_view)>& write);

}  // namespace ckpt::model
