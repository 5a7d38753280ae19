// A file of an image while it is written: appended to, buffered, hashed if asked.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/digest.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/store/image.h"

namespace ckpt::store {

/// For one thread at a time.
class AppendFile {
 public:
  static Result<AppendFile> create(const std::filesystem::path& dir, std::string name, bool hashed);

  /// Returns the offset at which `data` lies. Large data is written at once, small data collected.
  Result<uint64_t> append(ByteSpan data);
  /// Zeros up to the next page boundary.
  Result<void> align();
  Result<void> flush();
  /// Flushes and makes durable.
  Result<void> sync();

  uint64_t size() const { return written_ + buffer_.size(); }
  /// What the manifest says of it.
  StoredFile stored() const;

 private:
  AppendFile(UniqueFd fd, std::string name, std::string path) : fd_(std::move(fd)), name_(std::move(name)), path_(std::move(path)) {}
  Result<void> write(ByteSpan data);

  UniqueFd fd_;
  std::string name_, path_;
  uint64_t written_ = 0;
  std::vector<std::byte> buffer_;
  std::optional<Xxh3> hash_;
};

}  // namespace ckpt::store
