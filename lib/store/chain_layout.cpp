#include "lib/store/chain_layout.h"

#include "lib/store/chain.h"

namespace ckpt::store {

namespace fs = std::filesystem;

Result<std::vector<ChainImage>> find_chain(const fs::path& dir) {
  std::vector<ChainImage> out;
  fs::path at = dir;
  for (std::string wanted;;) {
    CKPT_TRY_ASSIGN(Manifest manifest, read_manifest(at));
    if (!wanted.empty() && manifest.id != wanted)
      return fail(Code::kCorrupt, at.string(),
                  "is another image than the parent that " + out.back().dir.string() + " had");
    for (const ChainImage& image : out) {
      if (image.dir == at) return fail(Code::kCorrupt, at.string(), "is its own ancestor");
    }
    out.push_back({at, std::move(manifest)});
    const Manifest& newest = out.back().manifest;
    if (newest.parent_id.empty()) return out;
    if (out.size() > kMaxChain) return fail(Code::kCorrupt, dir.string(), "has too long a chain of parents");
    const fs::path named = newest.parent_path;
    if (named.is_absolute())
      return Error(Code::kUnsupported, out.back().dir.string(),
                   "names its parent by a path that holds on this host alone")
          .with_hint("ckpt squash makes a chain into one image");
    std::error_code ec;
    wanted = newest.parent_id;
    const fs::path parent = fs::canonical(at / named, ec);
    if (ec)
      return fail(Code::kNotFound, (at / named).lexically_normal().string(),
                  "is the parent of " + at.string() + ", and not there");
    if (parent != (at / named / "").lexically_normal().parent_path())
      return Error(Code::kUnsupported, at.string(), "names its parent through a symbolic link")
          .with_hint("ckpt squash makes a chain into one image");
    at = parent;
  }
}

fs::path common_folder(const std::vector<ChainImage>& chain) {
  fs::path out = chain[0].dir.parent_path();
  for (const ChainImage& image : chain) {
    // An image that lies in another one has the outer one's folder in common with it.
    for (;;) {
      const fs::path relative = image.dir.parent_path().lexically_relative(out);
      if (!relative.empty() && *relative.begin() != "..") break;
      out = out.parent_path();
    }
  }
  return out;
}

}  // namespace ckpt::store
