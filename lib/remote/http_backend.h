// Plain HTTP and HTTPS: one file, or a folder as far as its server tells what is in it.
#pragma once

#include <memory>

#include "lib/base/cancel.h"
#include "lib/remote/backend.h"

namespace ckpt::remote {

/// `cancel` must outlive the backend; nullptr: nobody interrupts.
Result<std::unique_ptr<Backend>> open_http(const Url& url, const Cancel* cancel);

}  // namespace ckpt::remote
