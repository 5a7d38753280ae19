// A checkpoint as one HTML page that needs nothing but a browser: sizes, dtypes, statistics, files, differences.
#pragma once

#include <span>
#include <string>

#include "lib/model/diff.h"
#include "lib/model/report/page.h"
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
  std::string other;                     ///< what it was compared with
  std::string common;                    ///< the common state as JSON; empty: there is none, or it cannot be read
  std::string version;                   ///< of the ckpt that makes the page
};

/// Gives the page to `write` piece by piece, until it fails.
Result<void> write_report(const Report& report, const PageSink& write);

}  // namespace ckpt::model
