#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "lib/base/io.h"
#include "lib/base/staged_dir.h"
#include "lib/store/chain.h"
#include "lib/store/export.h"
#include "lib/store/image_files.h"
#include "lib/store/tar.h"

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

constexpr size_t kPiece = 64 << 10;
constexpr size_t kMaxDepth = 16, kMaxPart = 255;
constexpr uint64_t kMaxDigestFile = 4096;

/// A folder of an archive, "" or "images/now": plain parts alone.
bool is_plain_folder(std::string_view path) {
  if (path.empty()) return true;
  size_t parts = 0;
  for (size_t begin = 0; begin <= path.size(); ++parts) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPart) return false;
    if (std::any_of(part.begin(), part.end(), [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }))
      return false;
    begin = end + 1;
  }
  return parts <= kMaxDepth;
}

/// tar writes "./" in front of what it was given as ".", and "/" behind folders.
std::string_view plain(std::string_view path) {
  while (path.starts_with("./")) path.remove_prefix(2);
  while (path.ends_with('/')) path.remove_suffix(1);
  return path == "." ? std::string_view() : path;
}

/// An image that is coming in.
struct Incoming {
  bool has_manifest = false, described = false;
  Manifest manifest;
  std::set<std::string> seen;
};

class Import {
 public:
  Import(const std::function<Result<size_t>(MutableByteSpan)>& source, const std::string& subject,
         const ImportOptions& options, ProgressSink& progress, const Cancel& cancel)
      : tar_(source, subject), subject_(subject), options_(options), progress_(progress), cancel_(cancel) {}

  Result<ImportReport> run() {
    CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(options_.dir, options_.force));
    top_ = staged.path();
    progress_.begin("import", 0);
    for (;;) {
      CKPT_TRY_ASSIGN(const std::optional<TarEntry> entry, tar_.next());
      if (!entry) break;
      CKPT_TRY(entry->folder ? check_folder(entry->path) : take_file(*entry));
    }
    CKPT_TRY(check_complete());
    CKPT_TRY_ASSIGN(const std::string newest, find_newest());
    CKPT_TRY(check_content(newest));
    CKPT_TRY(cancel_.check());
    CKPT_TRY(staged.commit(newest.empty() ? kManifestName : newest.substr(0, newest.find('/'))));
    report_.manifest = images_.at(newest).manifest, report_.images = images_.size();
    report_.path = newest.empty() ? staged.destination() : staged.destination() / newest;
    return report_;
  }

 private:
  Unexpected refuse(const std::string& what) const { return fail(Code::kCorrupt, subject_, what); }

  Result<void> check_folder(const std::string& path) const {
    return is_plain_folder(plain(path)) ? Result<void>() : refuse("has a folder that no chain of images has: " + path);
  }

  Result<void> take_file(const TarEntry& entry) {
    const std::string path(plain(entry.path));
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash);
    const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
    if (!is_plain_folder(folder) || entry.path.starts_with('/') || entry.path.ends_with('/'))
      return refuse("has a path that leads elsewhere: " + entry.path);
    CKPT_TRY(check_name(folder, name, entry));
    CKPT_TRY_ASSIGN(Incoming * image, image_in(folder));
    if (!image->seen.insert(name).second) return refuse("has a file twice: " + entry.path);
    CKPT_TRY(write_file(top_ / folder / name, entry.size));
    image->has_manifest = image->has_manifest || name == kManifestName;
    if (name == kManifestDigestName) CKPT_TRY(describe(folder, *image));
    return {};
  }

  /// Before anything of it is written: whether the image can have it, and how long it can be.
  Result<void> check_name(const std::string& folder, const std::string& name, const TarEntry& entry) const {
    const auto found = images_.find(folder);
    const Incoming* const image = found == images_.end() ? nullptr : &found->second;
    const bool manifest = name == kManifestName, digest = name == kManifestDigestName;
    if (manifest || digest) {
      if (digest && (image == nullptr || !image->has_manifest)) return refuse("has a digest before its manifest");
      if (entry.size <= (manifest ? kMaxManifest : kMaxDigestFile)) return {};
      return refuse("has a file that is larger than any that ckpt writes: " + entry.path);
    }
    const std::vector<std::string> known = file_names(kMaxPagesFiles);
    if (std::count(known.begin(), known.end(), name) == 0)
      return refuse("has something in it that no image has: " + entry.path);
    if (image == nullptr || !image->described)
      return Error(Code::kCorrupt, subject_, "has a file before the manifest that says of it: " + entry.path)
          .with_hint("ckpt export makes archives whose manifests come first");
    for (const StoredFile& file : image->manifest.files) {
      if (file.name != name) continue;
      if (file.size == entry.size) return {};
      return refuse(fmt::format("has {} bytes of a file where its manifest says {}: {}", entry.size, file.size,
                                entry.path));
    }
    return refuse("has a file that its manifest does not name: " + entry.path);
  }

  /// Folders are made as images come, none inside of another image.
  Result<Incoming*> image_in(const std::string& folder) {
    if (const auto found = images_.find(folder); found != images_.end()) return &found->second;
    if (images_.size() >= kMaxChain) return refuse("has more images than a chain can have");
    for (const auto& [other, image] : images_) {
      const bool nested = other.empty() || folder.empty() || other.starts_with(folder + "/") ||
                          folder.starts_with(other + "/");
      if (nested) return refuse("has an image in the folder of another one");
    }
    for (size_t slash = 0; !folder.empty() && slash != std::string::npos;) {
      slash = folder.find('/', slash + 1);
      const fs::path made = top_ / folder.substr(0, slash);
      if (::mkdir(made.c_str(), 0700) != 0 && errno != EEXIST) return sys_error(made.string(), "cannot make a folder");
    }
    return &images_[folder];
  }

  Result<void> write_file(const fs::path& path, uint64_t size) {
    CKPT_TRY_ASSIGN(const UniqueFd fd, io::open_file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW));
    if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
      return sys_error(path.string(), "cannot be made so large");
    std::vector<std::byte> buffer(std::min<uint64_t>(kPiece, size));
    for (uint64_t at = 0; at < size;) {
      CKPT_TRY(cancel_.check());
      const MutableByteSpan piece(buffer.data(), std::min<uint64_t>(buffer.size(), size - at));
      CKPT_TRY(tar_.read(piece));
      const bool zeros =
          piece[0] == std::byte{0} && std::memcmp(piece.data(), piece.data() + 1, piece.size() - 1) == 0;
      if (!zeros) CKPT_TRY(io::pwrite_all(fd.get(), piece, at, path.string()));
      at += piece.size();
      progress_.advance(piece.size());
    }
    report_.bytes += size;
    return {};
  }

  /// The manifest is there as a whole, and what it says bounds what may come.
  Result<void> describe(const std::string& folder, Incoming& image) {
    auto manifest = read_manifest(top_ / folder);
    if (!manifest) return renamed(std::move(manifest).error());
    CKPT_TRY(check_file_list(*manifest, subject_));
    uint64_t sum = 0;
    for (const StoredFile& file : manifest->files) {
      if (file.size > static_cast<uint64_t>(INT64_MAX) - sum) return refuse("has files that are too large together");
      sum += file.size;
    }
    image.manifest = std::move(*manifest), image.described = true;
    return {};
  }

  /// The folder it has now is nobody's business.
  Error renamed(Error error) const {
    error.subject = subject_;
    return error;
  }

  Result<void> check_complete() const {
    if (images_.empty()) return refuse("has no image in it");
    for (const auto& [folder, image] : images_) {
      const size_t wanted = image.manifest.files.size() + 2;
      if (!image.described || image.seen.size() != wanted)
        return refuse("lacks files of the image " + (folder.empty() ? "in it" : folder));
    }
    return {};
  }

  /// The one that is no other's parent. Every other one is the parent of one, and lies where that says.
  Result<std::string> find_newest() const {
    std::set<std::string> parents;
    for (const auto& [folder, image] : images_) {
      const Manifest& manifest = image.manifest;
      if (manifest.parent_id.empty()) continue;
      const fs::path named = manifest.parent_path;
      const std::string parent = (fs::path(folder) / named / "").lexically_normal().parent_path().string();
      const auto found = named.is_absolute() || named.empty() ? images_.end() : images_.find(parent);
      if (found == images_.end() || found->second.manifest.id != manifest.parent_id)
        return refuse("has an image whose parent is not in it where it says: " + manifest.parent_path);
      if (!parents.insert(parent).second) return refuse("has two images with one parent: that is no chain");
    }
    std::vector<std::string> newest;
    for (const auto& [folder, image] : images_) {
      if (parents.count(folder) == 0) newest.push_back(folder);
    }
    if (newest.size() != 1) return refuse("has images that are no chain");
    return newest[0];
  }

  /// Every byte of the chain, by the digests.
  Result<void> check_content(const std::string& newest) {
    auto reader = ImageReader::open(top_ / newest);
    if (!reader) return renamed(std::move(reader).error());
    if ((*reader)->chain().size() != images_.size()) return refuse("has images that are no chain");
    CKPT_TRY_ASSIGN(const std::vector<ImageReader::Finding> findings, (*reader)->verify(progress_, cancel_));
    if (findings.empty()) return {};
    const std::string file = fs::path(findings[0].file).filename().string();
    return refuse(fmt::format("is damaged: {} at byte {}: {}", file, findings[0].offset, findings[0].what));
  }

  TarReader tar_;
  const std::string& subject_;
  const ImportOptions& options_;
  ProgressSink& progress_;
  const Cancel& cancel_;
  fs::path top_;
  std::map<std::string, Incoming> images_;  ///< by their folders
  ImportReport report_;
};

}  // namespace

Result<ImportReport> import_tar(const std::function<Result<size_t>(MutableByteSpan)>& source,
                                const std::string& subject, const ImportOptions& options, ProgressSink& progress,
                                const Cancel& cancel) {
  return Import(source, subject, options, progress, cancel).run();
}

}  // namespace ckpt::store
