#include "lib/store/append_file.h"

#include <fcntl.h>

#include "lib/base/checked.h"
#include "lib/base/io.h"
#include "lib/base/trace.h"

namespace ckpt::store {

namespace {
constexpr size_t kBufferSize = 256 * 1024;
/// From here on a write of its own costs less than the copy into the buffer.
constexpr size_t kWriteAtOnce = 32 * 1024;
}  // namespace

Result<AppendFile> AppendFile::create(const std::filesystem::path& dir, std::string name, bool hashed) {
  const std::filesystem::path path = dir / name;
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0600));
  AppendFile file(std::move(fd), std::move(name), path.string());
  if (hashed) file.hash_.emplace();
  return file;
}

Result<void> AppendFile::write(ByteSpan data) {
  CKPT_TRY(io::pwrite_all(fd_.get(), data, written_, path_));
  written_ += data.size();
  return {};
}

Result<void> AppendFile::flush() {
  CKPT_TRY(write(buffer_));
  buffer_.clear();
  return {};
}

Result<uint64_t> AppendFile::append(ByteSpan data) {
  if (hash_) hash_->update(data);
  uint64_t offset = size();
  if (data.size() >= kWriteAtOnce || buffer_.size() + data.size() > kBufferSize) CKPT_TRY(flush());
  if (data.size() >= kWriteAtOnce) {
    CKPT_TRY(write(data));
  } else {
    buffer_.reserve(kBufferSize);
    buffer_.insert(buffer_.end(), data.begin(), data.end());
  }
  return offset;
}

Result<void> AppendFile::align() {
  static constexpr std::byte kZeros[kPageSize] = {};
  uint64_t gap = align_up(size(), kPageSize) - size();
  CKPT_TRY(append(ByteSpan(kZeros).first(gap)));
  return {};
}

Result<void> AppendFile::sync() {
  trace::Span span("sync");
  CKPT_TRY(flush());
  return io::sync_fd(fd_.get(), path_);
}

StoredFile AppendFile::stored() const { return {name_, size(), hash_ ? to_hex(hash_->digest()) : ""}; }

}  // namespace ckpt::store
