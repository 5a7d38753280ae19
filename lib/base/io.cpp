#include "lib/base/io.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "lib/base/trace.h"
#include "lib/base/virtual_file.h"
#include "lib/base/worker_pool.h"

namespace ckpt::io {

Result<UniqueFd> open_file(const std::filesystem::path& path, int flags, unsigned mode) {
  int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) return sys_error(path.string(), "cannot open");
  return UniqueFd(fd);
}

Result<UniqueFd> open_regular(int dir, const std::string& name) {
  // O_NONBLOCK: opening a fifo planted under this name must not hang.
  UniqueFd fd(::openat(dir, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    if (errno == ELOOP) return fail(Code::kCorrupt, name, "is a symbolic link, which is not followed here");
    return sys_error(name, "cannot open");
  }
  CKPT_TRY_ASSIGN(struct stat st, stat_fd(fd.get(), name));
  if (!S_ISREG(st.st_mode)) return fail(Code::kCorrupt, name, "is not a regular file");
  return fd;
}

Result<struct stat> stat_fd(int fd, const std::string& subject) {
  struct stat st{};
  if (::fstat(fd, &st) != 0) return sys_error(subject, "cannot stat");
  return st;
}

namespace {

Error larger_than(uint64_t limit, const std::string& subject) {
  return {Code::kCorrupt, subject, "is larger than the limit of " + std::to_string(limit) + " bytes"};
}

}  // namespace

Result<std::string> read_all(int fd, uint64_t limit, const std::string& subject) {
  std::string out;
  if (auto elsewhere = find_virtual_file(fd)) {
    if (elsewhere->size() > limit) return larger_than(limit, subject);
    out.resize(elsewhere->size());
    CKPT_TRY(elsewhere->read(0, std::as_writable_bytes(std::span(out))));
    return out;
  }
  struct stat st{};
  if (::fstat(fd, &st) == 0 && st.st_size > 0) {
    if (static_cast<uint64_t>(st.st_size) > limit) return larger_than(limit, subject);
    out.resize(static_cast<size_t>(st.st_size));
  }
  // What has no size, /proc above all, comes 4 KiB at a time: no room is made, and cleared, for more than was read.
  char piece[16 * 1024];
  for (size_t used = 0;;) {
    const bool in_place = used < out.size();
    const ssize_t n = in_place ? ::read(fd, out.data() + used, out.size() - used) : ::read(fd, piece, sizeof piece);
    if (n < 0) {
      if (errno == EINTR) continue;
      return sys_error(subject, "cannot read");
    }
    if (n == 0) {
      out.resize(used);
      return out;
    }
    if (!in_place) out.append(piece, static_cast<size_t>(n));
    used += static_cast<size_t>(n);
    if (used > limit) return larger_than(limit, subject);
  }
}

Result<std::string> read_file(const std::filesystem::path& path, uint64_t limit) {
  // A pipe would block until somebody writes, a device has no end.
  CKPT_TRY_ASSIGN(UniqueFd fd, open_file(path, O_RDONLY | O_NONBLOCK));
  CKPT_TRY_ASSIGN(struct stat st, stat_fd(fd.get(), path.string()));
  if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return fail(Code::kCorrupt, path.string(), "is not a regular file");
  return read_all(fd.get(), limit, path.string());
}

Result<void> pread_exact(int fd, MutableByteSpan out, uint64_t offset, const std::string& subject) {
  trace::add(trace::kRead, trace::kBytes, out.size());
  if (auto elsewhere = find_virtual_file(fd)) {
    if (offset > elsewhere->size() || out.size() > elsewhere->size() - offset)
      return fail(Code::kCorrupt, subject, "truncated: it ends at byte " + std::to_string(elsewhere->size()));
    return elsewhere->read(offset, out);
  }
  while (!out.empty()) {
    ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return sys_error(subject, "cannot read");
    }
    if (n == 0) return fail(Code::kCorrupt, subject, "truncated: it ends at byte " + std::to_string(offset));
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Result<void> pwrite_all(int fd, ByteSpan data, uint64_t offset, const std::string& subject) {
  trace::add(trace::kWritten, trace::kBytes, data.size());
  while (!data.empty()) {
    ssize_t n = ::pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return sys_error(subject, "cannot write");
    }
    data = data.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Result<void> write_all(int fd, ByteSpan data, const std::string& subject) {
  trace::add(trace::kWritten, trace::kBytes, data.size());
  while (!data.empty()) {
    ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return sys_error(subject, "cannot write");
    }
    data = data.subspan(static_cast<size_t>(n));
  }
  return {};
}

void close_descriptors(unsigned first, unsigned last) {
  if (::syscall(SYS_close_range, first, last, 0) == 0) return;
  constexpr rlim_t kMost = 1 << 20;
  rlimit limit{kMost, kMost};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto end = static_cast<unsigned>(std::min(limit.rlim_max, kMost));
  for (unsigned fd = first; fd < end && fd <= last; ++fd) ::close(static_cast<int>(fd));
}

Result<void> write_file(const std::filesystem::path& path, std::string_view data) {
  CKPT_TRY_ASSIGN(UniqueFd fd, open_file(path, O_WRONLY | O_CREAT | O_TRUNC));
  return write_all(fd.get(), as_bytes(data), path.string());
}

Result<void> sync_fd(int fd, const std::string& subject) {
  if (::fsync(fd) != 0) return sys_error(subject, "cannot make durable (fsync)");
  return {};
}

Result<void> sync_dir(const std::filesystem::path& dir) {
  CKPT_TRY_ASSIGN(UniqueFd fd, open_file(dir, O_RDONLY | O_DIRECTORY));
  return sync_fd(fd.get(), dir.string());
}

Result<void> sync_tree(const std::filesystem::path& dir) {
  constexpr size_t kMany = 32;
  constexpr unsigned kAtOnce = 16;  // those that wait at a time share one commit of the file system's journal
  std::vector<std::filesystem::path> all;
  std::error_code ec;
  std::filesystem::recursive_directory_iterator it(dir, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    auto status = it->symlink_status(ec);
    if (ec) break;
    if (std::filesystem::is_directory(status) || std::filesystem::is_regular_file(status)) all.push_back(it->path());
  }
  if (ec) return sys_error(ec.value(), dir.string(), "cannot list");
  std::optional<WorkerPool> pool;
  if (all.size() >= kMany) make_helpers(kAtOnce, pool);
  CKPT_TRY(side_by_side(pool ? &*pool : nullptr, all.size(), [&](size_t i) -> Result<void> {
    CKPT_TRY_ASSIGN(const UniqueFd fd, open_file(all[i], O_RDONLY | O_NOFOLLOW));
    return sync_fd(fd.get(), all[i].string());
  }));
  return sync_dir(dir);
}

Result<void> make_folders(const std::filesystem::path& folder, std::vector<std::filesystem::path>& made) {
  std::vector<std::filesystem::path> missing;
  std::error_code ec;
  for (auto dir = folder; !dir.empty() && !std::filesystem::exists(dir, ec) && !ec; dir = dir.parent_path())
    missing.push_back(dir);
  for (auto dir = missing.rbegin(); dir != missing.rend(); ++dir) {
    if (::mkdir(dir->c_str(), 0777) != 0 && errno != EEXIST)
      return sys_error(dir->string(), "cannot create the folder");
    made.push_back(*dir);
  }
  return {};
}

}  // namespace ckpt::io
