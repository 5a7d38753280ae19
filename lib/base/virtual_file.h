// Files whose bytes lie elsewhere, in a bucket or on a server: in the file system a placeholder stands for each, of the
// same name and size and without bytes, so that what walks folders and opens files need not know. The functions of io.h
// (read_all, read_file, pread_exact, copy_range) and FileStream hand out the true bytes; nothing else may read one.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::io {

/// Thread-safe.
class VirtualFile {
 public:
  virtual ~VirtualFile() = default;
  virtual uint64_t size() const = 0;
  /// Exactly `out.size()` bytes at `offset`, which must lie inside.
  virtual Result<void> read(uint64_t offset, MutableByteSpan out) const = 0;
  /// What it reads from, beside the placeholder: a fork that closes everything else can go on reading.
  virtual std::vector<int> descriptors() const { return {}; }
};

/// From now on the placeholder that `st` is of has these bytes; nullptr: no longer. Process-wide, thread-safe.
void set_virtual_file(const struct stat& st, std::shared_ptr<const VirtualFile> file);

/// nullptr: an ordinary file. Costs nothing while there is no virtual file.
std::shared_ptr<const VirtualFile> find_virtual_file(int fd);

/// A descriptor without which virtual files cannot be read, for the rest of this process's life: a fork that closes all
/// that it has no use for keeps those. -1: none. To be set without other threads.
void set_needed_descriptor(int fd);
int needed_descriptor();

}  // namespace ckpt::io
