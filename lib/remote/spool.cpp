#include "lib/remote/spool.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "lib/base/checked.h"
#include "lib/base/io.h"

namespace ckpt::remote {

namespace {

constexpr uint64_t kPage = 4096;
constexpr const char* kSubject = "TMPDIR";

}  // namespace

Result<UniqueFd> make_unnamed_file() {
  std::error_code ec;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(ec);
  if (ec) return sys_error(ec.value(), kSubject, "cannot be used");
  UniqueFd unnamed(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (unnamed) return unnamed;
  std::string pattern = (folder / "ckpt-spool-XXXXXX").string();  // a file system that has only files with names
  UniqueFd out(::mkostemp(pattern.data(), O_CLOEXEC));
  if (!out) return sys_error(pattern, "cannot be made");
  ::unlink(pattern.c_str());
  return out;
}

Result<uint64_t> Spool::put(ByteSpan bytes) {
  uint64_t at = 0;
  {
    std::lock_guard lock(mutex_);
    if (!file_) {
      CKPT_TRY_ASSIGN(file_, make_unnamed_file());
    }
    at = size_;
    size_ += align_up(bytes.size(), kPage);
  }
  CKPT_TRY(io::pwrite_all(file_.get(), bytes, at, kSubject));
  return at;
}

Result<void> Spool::take(uint64_t at, MutableByteSpan out) {
  CKPT_TRY(io::pread_exact(file_.get(), out, at, kSubject));
  // Where the file system cannot do that, the room comes back with the end of the file.
  (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                    static_cast<off_t>(align_up(out.size(), kPage)));
  return {};
}

}  // namespace ckpt::remote
