#include "cli/dump_to_url.h"

#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "cli/saves.h"
#include "lib/base/io.h"
#include "lib/remote/url.h"
#include "lib/state/namespaces/entered.h"
#include "lib/store/image_files.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

/// What the parts on their way take of --max-memory.
constexpr uint64_t kUploadMemory = 96 << 20, kLeastMemory = 64 << 20;
/// Room for what an image has beside its pages, as a rule.
constexpr uint64_t kFolder = 64 << 20;

bool are_beside(const std::string& one, const std::string& other) {
  const size_t last = remote::last_part(one);
  return last != 0 && remote::last_part(other) == last && one.compare(0, last, other, 0, last) == 0;
}

/// A parent is found again from the image alone: as one beside it.
Result<void> check_parent(const DumpFlags& flags) {
  if (!flags.criu_prev.empty())
    return fail(Code::kUsage, flags.dir, "--prev-images-dir is for folders of this host: --prev takes a URL");
  const std::optional<std::string> parent = remote::with_urls(flags.prev);
  const std::string url = remote::without_slashes(flags.dir);
  if (flags.prev.empty() || (parent && are_beside(url, *parent))) return {};
  return fail(Code::kUsage, flags.dir, "and its parent (--prev) must lie beside each other");
}

}  // namespace

Result<void> resolve_parent(DumpFlags& flags, Context& context) {
  if (remote::is_url(flags.prev) && !remote::is_url(flags.dir))
    return fail(Code::kUsage, flags.prev, "is at a URL: --prev names it for an image that lies beside it");
  CKPT_TRY_ASSIGN(flags.prev, resolve_saved(flags.prev, Saved::kImage, context));
  return {};
}

Result<std::unique_ptr<ImageUpload>> ImageUpload::prepare(DumpFlags& flags, Context& context) {
  std::unique_ptr<ImageUpload> out;
  if (!remote::is_url(flags.dir)) return out;
  CKPT_TRY(check_parent(flags));
  CKPT_TRY_ASSIGN(const remote::Url url, remote::parse_url(flags.dir));
  if (state::entered() != nullptr && url.scheme == remote::Url::Scheme::kCommand)
    return Error(Code::kUnsupported, flags.dir,
                 "is a program, which those who are in the namespaces of the process would have in their hands")
        .with_hint("dump to a folder, and copy that");
  out.reset(new ImageUpload(flags, context));
  CKPT_TRY_ASSIGN(out->objects_, remote::Upload::open(flags.dir, {false, flags.options.force, {}}, &context.cancel));
  CKPT_TRY(out->choose_folder(flags));
  out->attach(flags.options);
  return out;
}

/// Where its parent has its placeholder, the image refers to it as it will at the URL.
Result<void> ImageUpload::choose_folder(DumpFlags& flags) {
  engine::DumpOptions& options = flags.options;
  if (!flags.prev.empty()) {
    const std::string url = remote::without_slashes(url_);
    options.dir = fs::path(flags.prev).parent_path() / url.substr(remote::last_part(url));
    return {};
  }
  // All but the pages fits into memory where TMPDIR has no room for it; with --rehearse the pages come, too.
  const uint64_t room = options.rehearse ? 0 : kFolder;
  CKPT_TRY_ASSIGN(scratch_, remote::ScratchFolder::make_with(room));
  options.dir = scratch_.path() / "image";
  options.no_prev = true;
  return {};
}

void ImageUpload::attach(engine::DumpOptions& options) {
  options.publish = [this](const fs::path& folder) { return upload(folder); };
  options.published_as = remote::without_slashes(url_);
  options.kept = [this] { uploaded_ = false; };
  // The tree may take this process along: what is told is told now, and nothing is left behind.
  if (const auto told = options.before_common_end) {
    options.before_common_end = [this, told](engine::DumpReport report) {
      say_what_was_dear();
      report.dir = url_;
      told(report);
      scratch_ = {};
    };
  }
  if (options.rehearse) return;  // which reads the pages again
  options.pages.take = [this](const std::string& file, uint64_t offset, ByteSpan data) {
    return take(file, offset, data);
  };
  options.pages.instead = true;
  options.in_a_hurry = [this](bool hurry) { objects_->never_wait(hurry); };
  options.max_memory = std::max(options.max_memory, kUploadMemory + kLeastMemory) - kUploadMemory;
}

Result<void> ImageUpload::take(const std::string& file, uint64_t offset, ByteSpan data) {
  io::OutputFile* object = nullptr;
  {
    std::lock_guard lock(mutex_);
    std::unique_ptr<io::OutputFile>& place = pages_[file];
    if (!place) {
      CKPT_TRY_ASSIGN(place, objects_->create(file, std::nullopt));
    }
    object = place.get();
  }
  return object->write(data, offset);
}

/// All that is left to upload, the manifest last.
Result<void> ImageUpload::upload(const fs::path& folder) {
  std::vector<fs::path> files;
  uint64_t total = 0;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (!it->is_regular_file(ec) || pages_.count(it->path().filename().string()) != 0) continue;
    files.push_back(it->path()), total += it->file_size(ec);
  }
  if (ec) return sys_error(ec.value(), folder.string(), "cannot be listed");
  context_.progress.begin("upload", total);
  for (const auto& [name, object] : pages_) CKPT_TRY(object->finish());
  for (const fs::path& path : files) CKPT_TRY(upload_file(path));
  CKPT_TRY(objects_->commit(store::kManifestName));
  uploaded_ = true;
  return {};
}

Result<void> ImageUpload::upload_file(const fs::path& path) {
  constexpr uint64_t kBlock = 1 << 20;
  CKPT_TRY_ASSIGN(const UniqueFd fd, io::open_file(path, O_RDONLY));
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd.get(), path.string()));
  const auto size = static_cast<uint64_t>(st.st_size);
  CKPT_TRY_ASSIGN(const auto object, objects_->create(path.filename().string(), size));
  std::vector<std::byte> block(std::min(kBlock, size));
  for (uint64_t at = 0; at < size; at += kBlock) {
    CKPT_TRY(context_.cancel.check());
    const MutableByteSpan piece(block.data(), std::min(kBlock, size - at));
    CKPT_TRY(io::pread_exact(fd.get(), piece, at, path.string()));
    CKPT_TRY(object->write(piece, at));
    context_.progress.advance(piece.size());
  }
  return object->finish();
}

void ImageUpload::say_what_was_dear() {
  if (objects_->waited())
    context_.out.info("note: TMPDIR had no room for what waits for the network, so that the process waited, too");
}

void ImageUpload::finish(Result<engine::DumpReport>& outcome) {
  if (outcome) say_what_was_dear();
  if (outcome)
    outcome->dir = url_;
  else if (uploaded_)
    outcome = objects_->withdraw(std::move(outcome).error());
}

}  // namespace ckpt::cli
