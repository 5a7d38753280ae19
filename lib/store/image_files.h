// One image's folder: its files opened, measured and compared with what the manifest says of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/store/image.h"
#include "lib/store/pagemap.h"

namespace ckpt::store {

constexpr uint64_t kMaxManifest = uint64_t{256} << 20;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kManifestDigestName = "manifest.sha256";
inline constexpr const char* kPagemapName = "pagemap";
inline constexpr const char* kXstateName = "xstate";
inline constexpr const char* kPipesName = "pipes";

/// Of an image with so many pages files: all but the manifest and its digest.
std::vector<std::string> file_names(size_t pages_files);
/// Whether the manifest lists the files of version 1, each once; else kCorrupt. `subject` names the manifest.
Result<void> check_file_list(const Manifest& manifest, const std::string& subject);
/// kPermission: others than this user and root own or may write what was opened, and it is an image.
Result<void> check_owner(int fd, const std::string& name, Trust trust);
/// What `manifest.sha256` holds for a manifest: the line that sha256sum prints.
std::string manifest_digest_line(std::string_view manifest_json);

/// An image opened: manifest and page map read and checked, all files as long as they should be. No descriptor is kept,
/// so that a long chain of parents does not use them up.
struct LoadedImage {
  std::filesystem::path dir;  ///< canonical
  Manifest manifest;
  std::string manifest_sha256;
  Trust trust = Trust::kAnybody;
  std::vector<PagemapRecord> records;

  /// The path of one of its files, for messages.
  std::string name_of(const std::string& file) const { return (dir / file).string(); }
  Result<UniqueFd> open(const std::string& file) const;
  /// What the manifest says of `file`; the file is one of those that `load_image` asked for.
  const StoredFile& stored(const std::string& file) const;
  size_t pages_files() const;
  std::vector<uint64_t> pages_sizes() const;
  uint64_t stored_bytes() const;
};

Result<LoadedImage> load_image(const std::filesystem::path& dir);
/// The same in two steps: all but the records, which take time in proportion to the memory, and then those.
Result<LoadedImage> load_description(const std::filesystem::path& dir, Trust trust = Trust::kAnybody);
Result<void> load_records(LoadedImage& image);
/// What a parser has found in the page map of `image`, in its name.
Result<std::vector<PagemapRecord>> take_records(const LoadedImage& image, Result<void> parsed, PagemapParser& parser);
/// The digests of a file's content, as far as the manifest has them.
class FileDigest {
 public:
  void update(ByteSpan data) { xxh_.update(data), sha_.update(data); }
  /// Once, after all of it.
  bool matches(const StoredFile& stored);

 private:
  Xxh3 xxh_;
  Sha256 sha_;
};
/// The first bytes of a file into `out`, and their digest: taken while a piece is in the cache.
Result<FileDigest> read_hashed(int fd, MutableByteSpan out, const std::string& name);
/// All of a file, of the size that the manifest gives it; kCorrupt if it has not the manifest's digest.
Result<void> read_checked(const LoadedImage& image, const std::string& file, MutableByteSpan out);
/// Does the file's content have the manifest's digest? kCorrupt if not.
Result<void> check_digest(const LoadedImage& image, const std::string& file);

}  // namespace ckpt::store
