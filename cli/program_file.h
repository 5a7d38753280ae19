// A program that is about to be started: where it is, and whether a library can be preloaded into it.
#pragma once

#include <string>

#include "lib/base/result.h"

namespace ckpt::cli {

/// As execvp looks for it: a name without a slash in PATH. kNotFound, kPermission.
Result<std::string> find_program(const std::string& name);

/// A library of ckpt's own: beside the binary, as it is built; in ../lib*/ckpt or ../lib/*/ckpt, as it is
/// installed. kUnsupported: there is none, or this ckpt could not load the driver.
Result<std::string> find_library(const std::string& name);
/// The one that `ckpt run` preloads.
Result<std::string> find_interposer();

/// kUnsupported: nothing can be preloaded into it, and why. A script is judged by its interpreter.
Result<void> check_preloadable(const std::string& path);

}  // namespace ckpt::cli
