// load-metadata --plan: what each rank of a layout would read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"

namespace ckpt::cli {

struct PlanOptions {
  std::string path, from;  ///< the checkpoint and its format
  std::string layout;      ///< the file that describes the layout
  std::vector<std::string> globs;
  std::optional<uint64_t> rank;
};

/// One document, schema ckpt.load-metadata/1, kind "plan"; no tensor byte is read.
Result<void> print_plan(Context& context, const PlanOptions& options);

}  // namespace ckpt::cli
