// A file of an image while it is written: appended to, buffered, hashed if asked, past the page cache if it is large.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lib/base/bytes.h"
#include "lib/base/digest.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/store/image.h"

namespace ckpt::store {

/// For one thread at a time.
///
/// On a disk, a megabyte at a time is written with O_DIRECT: an image does not push out what others have in the page
/// cache, and no fsync at the end finds all of it still to be written. A GiB on ext4, NVMe, written and synced: 0.6 to
/// 0.8 s, 0.09 of them CPU; through the page cache 5.4 s, started early by sync_file_range and dropped behind 1.3
/// to 1.9, 0.4 CPU. tmpfs is the page cache: there data is written as it comes.
class AppendFile {
 public:
  enum class Kind { kHashed, kPages };  ///< kHashed: XXH3-128 and SHA-256
  /// `sink`, which must outlive it, is given what is written.
  static Result<AppendFile> create(const std::filesystem::path& dir, std::string name, Kind kind,
                                   const PagesSink* sink = nullptr);

  /// Returns the offset at which `data` lies.
  Result<uint64_t> append(ByteSpan data);
  /// Zeros up to the next page boundary.
  Result<void> align();
  Result<void> flush();
  /// [first, last), flushed before, reads as zero from now on and takes no room where the file system can do that. What
  /// is with the sink alone stays as it is; the manifest says so.
  Result<void> clear(uint64_t first, uint64_t last);
  /// Flushes and makes durable.
  Result<void> sync();

  uint64_t size() const { return written_ + used_; }
  /// Its bytes are with the sink alone.
  bool is_hole() const { return sink_ != nullptr && sink_->instead; }
  /// What the manifest says of it.
  StoredFile stored();
  /// Its SHA-256, for which it is read back: pages are not written in order, and some are cleared again. After `sync`.
  Result<void> add_sha256();
  /// The same of a file that cannot be read back, whose pages stay as they were written: from its beginning on.
  void hash_as_written() { sha256_.emplace(); }

 private:
  AppendFile(UniqueFd fd, std::string name, std::string path)
      : fd_(std::move(fd)), name_(std::move(name)), path_(std::move(path)) {}
  Result<void> write(ByteSpan data);
  Result<void> collect(ByteSpan data);
  Result<void> leave_direct();

  UniqueFd fd_;
  std::string name_, path_;
  uint64_t written_ = 0;
  Mapping buffer_;   ///< page-aligned, made when it is first needed
  size_t used_ = 0;  ///< bytes in it
  bool direct_ = false, outdated_ = false;
  const PagesSink* sink_ = nullptr;
  std::optional<Xxh3> hash_;
  std::optional<Sha256> sha256_;
  std::string sha256_hex_;
};

}  // namespace ckpt::store
