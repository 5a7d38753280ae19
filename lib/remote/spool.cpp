#include "lib/remote/spool.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
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

/// Who fills a file system to its end has others fail.
Result<void> Spool::check_room(uint64_t bytes) {
  struct statvfs there {};
  if (::fstatvfs(file_.get(), &there) != 0) return {};  // writing will tell
  const uint64_t block = there.f_frsize, kept = std::min(there.f_blocks * block / 16, kLeftToOthers);
  if (there.f_blocks == 0 || there.f_bavail * block >= bytes + kept) return {};
  return fail(Code::kNoRoom, kSubject, "has no room for what waits for the network");
}

Result<uint64_t> Spool::put(ByteSpan bytes) {
  const uint64_t taken = align_up(bytes.size(), kPage);
  uint64_t at = 0;
  {
    std::lock_guard lock(mutex_);
    if (!file_) {
      CKPT_TRY_ASSIGN(file_, make_unnamed_file());
    }
    CKPT_TRY(check_room(taken));
    at = size_;
    size_ += taken;
  }
  auto written = io::pwrite_all(file_.get(), bytes, at, kSubject);
  if (written) return at;
  release(at, taken);
  return std::move(written).error();
}

Result<void> Spool::take(uint64_t at, MutableByteSpan out) {
  CKPT_TRY(io::pread_exact(file_.get(), out, at, kSubject));
  release(at, align_up(out.size(), kPage));
  return {};
}

/// Where the file system cannot do that, the room comes back with the end of the file.
void Spool::release(uint64_t at, uint64_t bytes) {
  (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                    static_cast<off_t>(bytes));
}

}  // namespace ckpt::remote
