#include "lib/remote/backend.h"

#include "lib/remote/command_backend.h"
#include "lib/remote/http_backend.h"
#include "lib/remote/s3.h"

namespace ckpt::remote {

Result<void> WritableBackend::put_file(const std::string& name, int, bool) {
  return fail(Code::kUnsupported, name, "is written in parts");
}

Result<std::unique_ptr<Backend>> open_backend(const Url& url, const Cancel* cancel) {
  if (url.scheme == Url::Scheme::kHttp) return open_http(url, cancel);
  CKPT_TRY_ASSIGN(std::unique_ptr<Backend> out, open_writable(url, cancel));
  return out;
}

Result<std::unique_ptr<WritableBackend>> open_writable(const Url& url, const Cancel* cancel) {
  if (url.scheme == Url::Scheme::kHttp)
    return Error(Code::kUnsupported, url.text, "is read only: HTTP has no way to write that servers agree on")
        .with_hint("s3:// and gs:// are written to");
  if (url.scheme == Url::Scheme::kCommand) return open_command(url, cancel);
  return open_s3(url, cancel);
}

}  // namespace ckpt::remote
