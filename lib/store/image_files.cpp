#include "lib/store/image_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "lib/base/io.h"

namespace ckpt::store {

namespace fs = std::filesystem;

namespace {

constexpr size_t kReadStep = 1 << 20;
constexpr size_t kRecordsStep = 256 << 10;  ///< stays in the cache between the digest and the parser
constexpr const char* kOtherDigest = "does not match its digest in the manifest";

Result<UniqueFd> open_dir(const fs::path& dir) {
  auto fd = io::open_file(dir, O_RDONLY | O_DIRECTORY);
  if (!fd && fd.error().sys_errno == ENOENT) return fail(Code::kNotFound, dir.string(), "there is no such folder");
  return fd;
}

Error at(Error error, const fs::path& path) {
  error.subject = path.string();
  return error;
}

/// The manifest that was looked at last, for whoever reads the same text next: a verb looks at it before it opens the
/// image, and parsing that of thousands of descriptors takes milliseconds.
class LookedAt {
 public:
  void keep(std::string sha256, const Manifest& manifest) {
    std::lock_guard lock(mutex_);
    sha256_ = std::move(sha256), manifest_ = std::make_unique<Manifest>(manifest);
  }
  /// Null: it is another one.
  std::unique_ptr<Manifest> take(const std::string& sha256) {
    std::lock_guard lock(mutex_);
    return manifest_ && sha256 == sha256_ ? std::move(manifest_) : nullptr;
  }

 private:
  std::mutex mutex_;
  std::string sha256_;  ///< of the text
  std::unique_ptr<Manifest> manifest_;
};

LookedAt& looked_at() {
  static LookedAt last;
  return last;
}

Result<Manifest> read_manifest_at(int dir_fd, const fs::path& dir, Trust trust, std::string& sha256) {
  auto fd = io::open_regular(dir_fd, kManifestName);
  if (!fd && fd.error().code == Code::kNotFound)
    return fail(Code::kNotFound, dir.string(), "holds no image: there is no manifest.json");
  if (!fd) return at(std::move(fd).error(), dir / kManifestName);
  CKPT_TRY(check_owner(fd->get(), (dir / kManifestName).string(), trust));
  CKPT_TRY_ASSIGN(std::string text, io::read_all(fd->get(), kMaxManifest, (dir / kManifestName).string()));

  auto digest_fd = io::open_regular(dir_fd, kManifestDigestName);
  if (!digest_fd && digest_fd.error().code == Code::kNotFound) {
    return fail(Code::kCorrupt, (dir / kManifestDigestName).string(), "is missing: the manifest cannot be trusted");
  }
  if (!digest_fd) return at(std::move(digest_fd).error(), dir / kManifestDigestName);
  CKPT_TRY(check_owner(digest_fd->get(), (dir / kManifestDigestName).string(), trust));
  CKPT_TRY_ASSIGN(std::string line, io::read_all(digest_fd->get(), 4096, (dir / kManifestDigestName).string()));
  if (line != manifest_digest_line(text)) {
    return fail(Code::kCorrupt, (dir / kManifestName).string(), "does not match its digest in manifest.sha256");
  }
  sha256 = line.substr(0, line.find(' '));
  if (const std::unique_ptr<Manifest> known = looked_at().take(sha256)) return std::move(*known);
  auto manifest = parse_manifest(text);
  if (!manifest) return at(std::move(manifest).error(), dir / kManifestName);
  return manifest;
}

Result<void> check_size(const LoadedImage& image, const StoredFile& file) {
  CKPT_TRY_ASSIGN(UniqueFd fd, image.open(file.name));
  CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd.get(), image.name_of(file.name)));
  auto size = static_cast<uint64_t>(st.st_size);
  if (size == file.size) return {};
  return fail(Code::kCorrupt, image.name_of(file.name),
              fmt::format("{}: it has {} bytes, the manifest says {}", size < file.size ? "truncated" : "too long",
                          size, file.size));
}

/// Reads a file piece by piece, `seen` is told of each, and the digest is compared with the manifest's.
template <class Seen>
Result<void> read_pieces(const LoadedImage& image, const std::string& file, size_t step, Seen seen) {
  CKPT_TRY_ASSIGN(UniqueFd fd, image.open(file));
  const StoredFile& stored = image.stored(file);
  FileDigest digest;
  std::vector<std::byte> buffer(std::min<uint64_t>(step, stored.size));
  for (uint64_t pos = 0; pos < stored.size;) {
    const MutableByteSpan piece = MutableByteSpan(buffer).first(std::min<uint64_t>(buffer.size(), stored.size - pos));
    CKPT_TRY(io::pread_exact(fd.get(), piece, pos, image.name_of(file)));
    digest.update(piece);
    seen(piece);
    pos += piece.size();
  }
  if (!digest.matches(stored)) return fail(Code::kCorrupt, image.name_of(file), kOtherDigest);
  return {};
}

}  // namespace

/// By the opened file, so that nobody can put another one in its place.
Result<void> check_owner(int fd, const std::string& name, Trust trust) {
  if (trust == Trust::kAnybody) return {};
  CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd, name));
  const char* what = st.st_uid != 0 && st.st_uid != ::geteuid()     ? "belongs to another user"
                     : (st.st_mode & (S_IWGRP | S_IWOTH)) != 0 ? "can be written by other users"
                                                               : nullptr;
  if (what == nullptr) return {};
  return Error(Code::kPermission, name, std::string(what) + ", who may have the image say anything: it is not restored")
      .with_hint("--trust takes it all the same, with every right that it asks for (ckpt-security(7))");
}

std::vector<std::string> file_names(size_t pages_files) {
  std::vector<std::string> out = {kPagemapName, kXstateName, kPipesName};
  for (size_t i = 0; i < pages_files; ++i) out.push_back(pages_file_name(i));
  return out;
}

Result<void> check_file_list(const Manifest& manifest, const std::string& subject) {
  std::vector<std::string> names;
  for (const StoredFile& file : manifest.files) names.push_back(file.name);
  std::sort(names.begin(), names.end());
  const size_t others = file_names(0).size();
  const size_t pages = names.size() > others ? names.size() - others : 1;
  if (pages > kMaxPagesFiles) return fail(Code::kCorrupt, subject, "files: lists too many");
  std::vector<std::string> expected = file_names(pages);
  std::sort(expected.begin(), expected.end());
  if (names != expected) return fail(Code::kCorrupt, subject, "files: lists other files than an image has");
  return {};
}

bool FileDigest::matches(const StoredFile& stored) {
  return (stored.xxh128.empty() || to_hex(xxh_.digest()) == stored.xxh128) &&
         (stored.sha256.empty() || sha_.finish_hex() == stored.sha256);
}

std::string manifest_digest_line(std::string_view manifest_json) {
  return sha256_hex(as_bytes(manifest_json)) + "  " + kManifestName + "\n";
}

Result<UniqueFd> LoadedImage::open(const std::string& file) const {
  CKPT_TRY_ASSIGN(UniqueFd dir_fd, open_dir(dir));
  CKPT_TRY(check_owner(dir_fd.get(), dir.string(), trust));
  auto fd = io::open_regular(dir_fd.get(), file);
  if (!fd && fd.error().code == Code::kNotFound) return fail(Code::kCorrupt, name_of(file), "is missing");
  if (!fd) return at(std::move(fd).error(), dir / file);
  CKPT_TRY(check_owner(fd->get(), name_of(file), trust));
  return fd;
}

const StoredFile& LoadedImage::stored(const std::string& file) const {
  auto it =
      std::find_if(manifest.files.begin(), manifest.files.end(), [&](const StoredFile& f) { return f.name == file; });
  CKPT_ASSERT(it != manifest.files.end());
  return *it;
}

size_t LoadedImage::pages_files() const { return manifest.files.size() - 3; }

std::vector<uint64_t> LoadedImage::pages_sizes() const {
  std::vector<uint64_t> out;
  for (size_t i = 0; i < pages_files(); ++i) out.push_back(stored(pages_file_name(i)).size);
  return out;
}

uint64_t LoadedImage::stored_bytes() const {
  uint64_t sum = 0;
  for (const StoredFile& file : manifest.files) sum += file.size;
  return sum;
}

Result<LoadedImage> load_description(const fs::path& dir, Trust trust) {
  LoadedImage image;
  image.trust = trust;
  std::error_code ec;
  image.dir = fs::canonical(dir, ec);
  if (ec) return sys_error(ec.value(), dir.string(), "cannot open the image");
  CKPT_TRY_ASSIGN(UniqueFd dir_fd, open_dir(image.dir));
  CKPT_TRY(check_owner(dir_fd.get(), image.dir.string(), trust));
  CKPT_TRY_ASSIGN(image.manifest, read_manifest_at(dir_fd.get(), image.dir, trust, image.manifest_sha256));
  CKPT_TRY(check_file_list(image.manifest, image.name_of(kManifestName)));
  for (const StoredFile& file : image.manifest.files) CKPT_TRY(check_size(image, file));
  return image;
}

Result<void> load_records(LoadedImage& image) {
  PagemapParser parser(image.pages_sizes(), !image.manifest.parent_id.empty());
  parser.expect(image.stored(kPagemapName).size);
  Result<void> parsed;
  // That it is another file than it was says more than what is wrong in it: the digest comes first.
  CKPT_TRY(read_pieces(image, kPagemapName, kRecordsStep, [&](ByteSpan piece) {
    if (parsed) parsed = parser.feed(piece);
  }));
  CKPT_TRY_ASSIGN(image.records, take_records(image, std::move(parsed), parser));
  return {};
}

Result<std::vector<PagemapRecord>> take_records(const LoadedImage& image, Result<void> parsed, PagemapParser& parser) {
  auto records = parsed ? parser.finish() : Result<std::vector<PagemapRecord>>(std::move(parsed).error());
  if (!records) return at(std::move(records).error(), image.dir / kPagemapName);
  return records;
}

Result<LoadedImage> load_image(const fs::path& dir) {
  CKPT_TRY_ASSIGN(LoadedImage image, load_description(dir));
  CKPT_TRY(load_records(image));
  return image;
}

Result<void> check_digest(const LoadedImage& image, const std::string& file) {
  return read_pieces(image, file, kReadStep, [](ByteSpan) {});
}

Result<FileDigest> read_hashed(int fd, MutableByteSpan out, const std::string& name) {
  FileDigest hash;
  for (size_t pos = 0; pos < out.size(); pos += kRecordsStep) {
    const MutableByteSpan piece = out.subspan(pos, std::min(kRecordsStep, out.size() - pos));
    CKPT_TRY(io::pread_exact(fd, piece, pos, name));
    hash.update(piece);
  }
  return hash;
}

Result<void> read_checked(const LoadedImage& image, const std::string& file, MutableByteSpan out) {
  CKPT_TRY_ASSIGN(UniqueFd fd, image.open(file));
  CKPT_TRY_ASSIGN(FileDigest digest, read_hashed(fd.get(), out, image.name_of(file)));
  if (!digest.matches(image.stored(file))) return fail(Code::kCorrupt, image.name_of(file), kOtherDigest);
  return {};
}

Result<Manifest> read_manifest(const fs::path& dir) {
  CKPT_TRY_ASSIGN(UniqueFd dir_fd, open_dir(dir));
  std::string sha256;
  CKPT_TRY_ASSIGN(Manifest manifest, read_manifest_at(dir_fd.get(), dir, Trust::kAnybody, sha256));
  looked_at().keep(std::move(sha256), manifest);
  return manifest;
}

}  // namespace ckpt::store
