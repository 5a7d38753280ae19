// Files: whole reads with a limit, exact reads and writes at an offset, durability.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::io {

Result<UniqueFd> open_file(const std::filesystem::path& path, int flags, unsigned mode = 0600);
/// Opens `name` below `dir` (AT_FDCWD is fine); O_NOFOLLOW | O_CLOEXEC added. Refuses what is not a regular file
/// (kCorrupt).
Result<UniqueFd> open_regular(int dir, const std::string& name);

Result<struct stat> stat_fd(int fd, const std::string& subject);
/// The whole file, refused (kCorrupt) when it is a pipe, a socket or a device, or larger than `limit` bytes. Works for
/// /proc files, whose size reads as 0.
Result<std::string> read_file(const std::filesystem::path& path, uint64_t limit);
Result<std::string> read_all(int fd, uint64_t limit, const std::string& subject);

/// Exactly `out.size()` bytes at `offset`; a short file is kCorrupt ("truncated").
Result<void> pread_exact(int fd, MutableByteSpan out, uint64_t offset, const std::string& subject);
Result<void> pwrite_all(int fd, ByteSpan data, uint64_t offset, const std::string& subject);
Result<void> write_all(int fd, ByteSpan data, const std::string& subject);

/// Closes every descriptor from `first` to `last` that is open: also where a filter of system calls refuses
/// close_range(2). Without memory of its own, for the child of a fork.
void close_descriptors(unsigned first, unsigned last = ~0u);

/// Creates or replaces `path` (0600) with `data`; not synced.
Result<void> write_file(const std::filesystem::path& path, std::string_view data);

Result<void> sync_fd(int fd, const std::string& subject);
/// Syncs a folder's entries.
Result<void> sync_dir(const std::filesystem::path& dir);
/// fsync on every regular file and folder below `dir`, then `dir` itself.
Result<void> sync_tree(const std::filesystem::path& dir);

/// The folder and those above it, where they are missing; `made`: those that were, from the top, also after a failure.
Result<void> make_folders(const std::filesystem::path& folder, std::vector<std::filesystem::path>& made);

}  // namespace ckpt::io
