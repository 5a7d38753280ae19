#include "lib/remote/backend.h"

#include "lib/remote/http_backend.h"
#include "lib/remote/s3.h"

namespace ckpt::remote {

Result<std::unique_ptr<Backend>> open_backend(const Url& url, const Cancel* cancel) {
  return url.scheme == Url::Scheme::kHttp ? open_http(url, cancel) : open_s3(url, cancel);
}

}  // namespace ckpt::remote
