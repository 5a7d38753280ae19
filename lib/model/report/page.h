// Pages for a browser, which need nothing but it: HTML with style and scripts put in, made into strings when ckpt is
// built. "@DATA@" stands where a JSON document goes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lib/base/result.h"

namespace ckpt::model {

extern const std::string_view kCheckpointPage;  ///< write_report (report.h) has its members
extern const std::string_view kImagePage;       ///< of a process image: ckpt.inspect/1 (man/ckpt-json.5), made, version

using PageSink = std::function<Result<void>(std::string_view)>;
/// The page before its data, what `data` gives to the sink, what comes behind it; until the sink fails.
Result<void> write_page(std::string_view page, const PageSink& write,
                        const std::function<Result<void>(const PageSink& write)>& data);
/// JSON inside a script element: "<", which stands in strings only, must not end it ("</script>") nor begin a comment
/// ("<!--").
std::string escape_for_page(std::string_view json);

}  // namespace ckpt::model
