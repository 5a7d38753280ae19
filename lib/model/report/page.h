// The page of `write_report`: page.html with page.css and page.js put in, made into a string when ckpt is built.
#pragma once

#include <string_view>

namespace ckpt::model {

/// "@DATA@" stands where the data goes.
extern const std::string_view kReportPage;

}  // namespace ckpt::model
