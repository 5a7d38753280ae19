#include "cli/dump_to_url.h"

#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "lib/base/io.h"
#include "lib/remote/url.h"
#include "lib/state/namespaces/entered.h"
#include "lib/store/image_files.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

Result<std::unique_ptr<ImageUpload>> ImageUpload::prepare(DumpFlags& flags, Context& context) {
  std::unique_ptr<ImageUpload> out;
  if (!remote::is_url(flags.dir)) return out;
  if (!flags.prev.empty() || !flags.criu_prev.empty())
    return fail(Code::kUsage, flags.dir, "an image at a URL has no parent: --prev is for folders of this host");
  if (state::entered() != nullptr)
    return Error(Code::kUnsupported, flags.dir, "cannot be reached from the namespaces that the process is in")
        .with_hint("dump to a folder, and copy that");
  out.reset(new ImageUpload(flags, context));
  CKPT_TRY_ASSIGN(out->objects_, remote::Upload::open(flags.dir, {false, flags.options.force}, &context.cancel));
  CKPT_TRY_ASSIGN(out->scratch_, remote::ScratchFolder::make());
  flags.options.dir = out->scratch_.path() / "image";
  flags.options.no_prev = true;
  flags.options.publish = [self = out.get()](const fs::path& folder) { return self->upload(folder); };
  flags.options.kept = [self = out.get()] { self->uploaded_ = false; };
  return out;
}

/// All files of the image, the manifest last.
Result<void> ImageUpload::upload(const fs::path& folder) {
  constexpr uint64_t kBlock = 1 << 20;
  std::vector<fs::path> files;
  uint64_t total = 0;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->is_regular_file(ec)) files.push_back(it->path()), total += it->file_size(ec);
  }
  if (ec) return sys_error(ec.value(), folder.string(), "cannot be listed");
  context_.progress.begin("upload", total);
  std::vector<std::byte> block(kBlock);
  for (const fs::path& path : files) {
    CKPT_TRY_ASSIGN(const UniqueFd fd, io::open_file(path, O_RDONLY));
    CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd.get(), path.string()));
    const auto size = static_cast<uint64_t>(st.st_size);
    CKPT_TRY_ASSIGN(const auto object, objects_->create(path.filename().string(), size));
    for (uint64_t at = 0; at < size; at += kBlock) {
      CKPT_TRY(context_.cancel.check());
      const MutableByteSpan piece(block.data(), std::min(kBlock, size - at));
      CKPT_TRY(io::pread_exact(fd.get(), piece, at, path.string()));
      CKPT_TRY(object->write(piece, at));
      context_.progress.advance(piece.size());
    }
    CKPT_TRY(object->finish());
  }
  CKPT_TRY(objects_->commit(store::kManifestName));
  uploaded_ = true;
  return {};
}

void ImageUpload::finish(Result<engine::DumpReport>& outcome) {
  if (outcome)
    outcome->dir = url_;
  else if (uploaded_)
    outcome = objects_->withdraw(std::move(outcome).error());
}

}  // namespace ckpt::cli
