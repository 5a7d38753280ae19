#include "lib/store/append_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "lib/base/checked.h"
#include "lib/base/io.h"
#include "lib/base/trace.h"

namespace ckpt::store {

namespace {

/// Of a direct write, too: what 256 KiB take longer by.
constexpr size_t kBufferSize = 1 << 20;
/// Into the page cache, from here on a write of its own costs less than the copy into the buffer.
constexpr size_t kWriteAtOnce = 32 * 1024;

bool is_in_memory(int fd) {
  struct statfs fs{};
  return ::fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

bool set_direct(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

}  // namespace

Result<AppendFile> AppendFile::create(const std::filesystem::path& dir, std::string name, Kind kind,
                                      const PagesSink* sink) {
  const std::filesystem::path path = dir / name;
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0600));
  AppendFile file(std::move(fd), std::move(name), path.string());
  if (sink != nullptr && sink->take) file.sink_ = sink;
  if (kind == Kind::kHashed) file.hash_.emplace(), file.sha256_.emplace();
  else file.direct_ = !file.is_hole() && !is_in_memory(file.fd_.get()) && set_direct(file.fd_.get(), true);
  return file;
}

Result<void> AppendFile::leave_direct() {
  if (direct_ && !set_direct(fd_.get(), false)) return sys_error(path_, "cannot be written through the page cache");
  direct_ = false;
  return {};
}

Result<void> AppendFile::write(ByteSpan data) {
  if (sink_ != nullptr) CKPT_TRY(sink_->take(name_, written_, data));
  if (is_hole()) {
    if (sha256_) sha256_->update(data);
    written_ += data.size();
    return {};
  }
  Result<void> done = io::pwrite_all(fd_.get(), data, written_, path_);
  if (!done && direct_ && done.error().sys_errno == EINVAL) {  // the file system wants other alignments
    CKPT_TRY(leave_direct());
    done = io::pwrite_all(fd_.get(), data, written_, path_);
  }
  CKPT_TRY(std::move(done));
  written_ += data.size();
  return {};
}

Result<void> AppendFile::flush() {
  if (used_ == 0) return {};
  if (used_ % kPageSize != 0) CKPT_TRY(leave_direct());
  CKPT_TRY(write(ByteSpan(buffer_.data(), used_)));
  used_ = 0;
  return {};
}

Result<void> AppendFile::collect(ByteSpan data) {
  if (!buffer_ && !data.empty()) {
    void* at = ::mmap(nullptr, kBufferSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return sys_error(path_, "no memory to write it");
    buffer_ = Mapping(at, kBufferSize);
  }
  while (!data.empty()) {
    const size_t n = std::min(kBufferSize - used_, data.size());
    std::memcpy(buffer_.data() + used_, data.data(), n);
    used_ += n;
    data = data.subspan(n);
    if (used_ == kBufferSize) CKPT_TRY(flush());
  }
  return {};
}

Result<uint64_t> AppendFile::append(ByteSpan data) {
  if (hash_) hash_->update(data), sha256_->update(data);
  const uint64_t offset = size();
  if (direct_ || data.size() < kWriteAtOnce) {
    CKPT_TRY(collect(data));
  } else {
    CKPT_TRY(flush());
    CKPT_TRY(write(data));
  }
  return offset;
}

Result<void> AppendFile::align() {
  static constexpr std::byte kZeros[kPageSize] = {};
  uint64_t gap = align_up(size(), kPageSize) - size();
  CKPT_TRY(append(ByteSpan(kZeros).first(gap)));
  return {};
}

Result<void> AppendFile::clear(uint64_t first, uint64_t last) {
  if (is_hole()) {
    outdated_ = true;
    return {};
  }
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                  static_cast<off_t>(last - first)) == 0)
    return {};
  if (errno != EOPNOTSUPP && errno != ENOSYS) return sys_error(path_, "cannot be cleared in part");
  CKPT_TRY(leave_direct());
  static constexpr std::byte kZeros[64 * 1024] = {};
  for (uint64_t at = first; at < last; at += sizeof kZeros) {
    CKPT_TRY(
        io::pwrite_all(fd_.get(), ByteSpan(kZeros).first(std::min<uint64_t>(sizeof kZeros, last - at)), at, path_));
  }
  return {};
}

Result<void> AppendFile::sync() {
  trace::Span span("sync");
  CKPT_TRY(flush());
  if (is_hole() && ::ftruncate(fd_.get(), static_cast<off_t>(written_)) != 0)
    return sys_error(path_, "cannot be given its size");
  return io::sync_fd(fd_.get(), path_);
}

Result<void> AppendFile::add_sha256() {
  if (is_hole()) return {};
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(path_, O_RDONLY));
  Sha256 sha;
  std::vector<std::byte> buffer(std::min<uint64_t>(kBufferSize, size()));
  for (uint64_t at = 0; at < size();) {
    const MutableByteSpan piece = MutableByteSpan(buffer).first(std::min<uint64_t>(buffer.size(), size() - at));
    CKPT_TRY(io::pread_exact(fd.get(), piece, at, path_));
    sha.update(piece);
    at += piece.size();
  }
  sha256_hex_ = sha.finish_hex();
  return {};
}

StoredFile AppendFile::stored() {
  if (sha256_) sha256_hex_ = sha256_->finish_hex(), sha256_.reset();
  return {name_, size(), hash_ ? to_hex(hash_->digest()) : "", sha256_hex_, outdated_};
}

}  // namespace ckpt::store
