#include "lib/store/find_images.h"

#include <sys/stat.h>

#include <algorithm>

#include "lib/base/text.h"
#include "lib/store/image.h"

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

bool on_device(const fs::path& dir, dev_t device) {
  struct stat st{};
  return ::lstat(dir.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_dev == device;
}

bool needs(const fs::path& child, const fs::path& parent, const std::string& parent_id) {
  auto manifest = read_manifest(child);
  if (!manifest || manifest->parent_id.empty()) return false;
  std::error_code ec;
  const fs::path named = fs::canonical(child / manifest->parent_path, ec);
  if (!ec && named == parent) return true;
  if (parent_id.empty() || manifest->parent_id != parent_id) return false;
  auto other = ec ? Result<Manifest>(Manifest{}) : read_manifest(named);
  return !other || other->id != parent_id;
}

}  // namespace

Result<std::vector<fs::path>> find_images(const fs::path& top, ProgressSink& notes, const Cancel& cancel) {
  std::vector<fs::path> out;
  struct stat st{};
  if (::stat(top.c_str(), &st) != 0 || !S_ISDIR(st.st_mode))
    return fail(Code::kNotFound, top.string(), "there is no such folder");
  std::vector<fs::path> pending = {top};
  while (!pending.empty()) {
    CKPT_TRY(cancel.check());
    const fs::path dir = std::move(pending.back());
    pending.pop_back();
    if (ImageReader::looks_like_image(dir)) {
      out.push_back(dir);
      continue;
    }
    std::error_code ec;
    fs::directory_iterator it(dir, ec), end;
    for (; !ec && it != end; it.increment(ec)) {
      // A folder that ckpt is still writing, or never finished.
      if (it->path().filename().string().rfind(".ckpt-staging-", 0) == 0) continue;
      std::error_code gone;
      if (it->symlink_status(gone).type() == fs::file_type::directory && on_device(it->path(), st.st_dev))
        pending.push_back(it->path());
    }
    if (ec) notes.note(dir.string() + ": cannot be listed: " + ec.message());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<fs::path> children_of(const fs::path& dir, const std::vector<fs::path>& known) {
  std::error_code ec;
  std::vector<fs::path> candidates;
  for (const fs::path& image : known) candidates.push_back(fs::canonical(image, ec));
  for (fs::directory_iterator it(dir / kChildrenName, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code gone;
    candidates.push_back(fs::canonical(it->path(), gone));
  }
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  auto own = read_manifest(dir);
  std::erase_if(candidates, [&](const fs::path& image) {
    return image.empty() || image == dir || !needs(image, dir, own ? own->id : "");
  });
  return candidates;
}

}  // namespace ckpt::store
