#include "lib/base/copy.h"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "lib/base/io.h"
#include "lib/base/virtual_file.h"

namespace ckpt::io {

Result<void> copy_range(int from, uint64_t from_offset, int to, uint64_t to_offset, uint64_t length,
                        const std::string& subject) {
  const bool elsewhere = find_virtual_file(from) != nullptr;
  while (length > 0 && !elsewhere) {
    auto in = static_cast<off64_t>(from_offset), out = static_cast<off64_t>(to_offset);
    ssize_t n = ::copy_file_range(from, &in, to, &out, length, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) return sys_error(subject, "cannot write");
    if (n <= 0) break;  // another file system, or a kind of file that cannot: what is left is read and written
    from_offset += static_cast<uint64_t>(n);
    to_offset += static_cast<uint64_t>(n);
    length -= static_cast<uint64_t>(n);
  }
  std::vector<std::byte> buffer(std::min<uint64_t>(length, 256 << 10));
  while (length > 0) {
    MutableByteSpan block(buffer.data(), std::min<uint64_t>(length, buffer.size()));
    CKPT_TRY(pread_exact(from, block, from_offset, subject));
    CKPT_TRY(pwrite_all(to, block, to_offset, subject));
    from_offset += block.size();
    to_offset += block.size();
    length -= block.size();
  }
  return {};
}

bool clone_range(int from, uint64_t from_offset, int to, uint64_t to_offset, uint64_t length) {
  if (find_virtual_file(from)) return false;
  struct file_clone_range range{};
  range.src_fd = from;
  range.src_offset = from_offset;
  range.src_length = length;
  range.dest_offset = to_offset;
  return length > 0 && ::ioctl(to, FICLONERANGE, &range) == 0;
}

}  // namespace ckpt::io
