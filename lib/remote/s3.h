// S3, and what speaks like it.
#pragma once

#include <memory>

#include "lib/remote/backend.h"
#include "lib/remote/credentials.h"

namespace ckpt::remote {

/// `url` is kS3 or kGoogle. `cancel` must outlive the backend; nullptr: nobody interrupts.
Result<std::unique_ptr<WritableBackend>> open_s3(const Url& url, const Cancel* cancel);

}  // namespace ckpt::remote
