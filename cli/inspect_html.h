// inspect --html: a page, put in its place when it is complete.
#pragma once

#include <functional>
#include <string>

#include "cli/console.h"
#include "lib/model/report/page.h"

namespace ckpt::cli {

/// Writes what `page` gives to its sink to the file `target`, and says so; "-": to stdout.
Result<void> put_page(Console& out, const std::string& target,
                      const std::function<Result<void>(const model::PageSink& write)>& page);

}  // namespace ckpt::cli
