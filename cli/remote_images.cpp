#include "cli/remote_images.h"

#include "lib/remote/home_network.h"
#include "lib/store/chain.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

Result<void> mount_parents(remote::Mounted& mounted) {
  fs::path image = mounted.path();
  if (!store::ImageReader::looks_like_image(image)) return {};
  for (size_t i = 0; i < store::kMaxChain; ++i) {
    const auto manifest = store::read_manifest(image);
    if (!manifest || manifest->parent_path.empty()) return {};
    fs::path parent = (image / manifest->parent_path).lexically_normal();
    if (!parent.has_filename()) parent = parent.parent_path();
    std::error_code ec;
    if (!fs::exists(parent, ec)) {
      CKPT_TRY_ASSIGN(const bool added, mounted.add_beside(parent));
      if (!added) return {};
    }
    image = std::move(parent);
  }
  return {};
}

Result<void> check_trust(const fs::path& image, bool trust) {
  if (trust || !remote::with_urls(image.string())) return {};
  return Error(Code::kPermission, image.string(),
               "lies at a URL, and who may write there may have the image say anything: it is not restored")
      .with_hint("--trust takes it all the same, with every right that it asks for (ckpt-security(7))");
}

Result<bool> fetch_from_elsewhere(const fs::path& image) {
  const std::optional<std::string> url = remote::with_urls(image.string());
  if (!url) return false;
  if (url->starts_with("cmd:"))
    return Error(Code::kUnsupported, image.string(),
                 "is a program, which those who are in other namespaces would have in their hands")
        .with_hint("copy the image, with its parents, to a folder first");
  CKPT_TRY(remote::remember_network());
  return true;
}

}  // namespace ckpt::cli
