#include "lib/remote/scratch_folder.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <utility>

#include "lib/base/hex.h"
#include "lib/base/io.h"

namespace ckpt::remote {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "ckpt-url-";

/// Folders of this user whose owner was killed: nobody holds their lock any more. One that was made this moment and is
/// not locked yet is left alone.
void remove_abandoned(const fs::path& temporary) {
  constexpr std::time_t kMoment = 10;
  std::error_code ec;
  for (fs::directory_iterator it(temporary, ec), end; !ec && it != end; it.increment(ec)) {
    if (!it->path().filename().string().starts_with(kPrefix)) continue;
    const UniqueFd fd(::open(it->path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat st {};
    std::error_code ignored;
    if (fd && ::fstat(fd.get(), &st) == 0 && st.st_uid == ::geteuid() && std::time(nullptr) - st.st_mtime > kMoment &&
        ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0)
      fs::remove_all(it->path(), ignored);
  }
}

}  // namespace

Result<ScratchFolder> ScratchFolder::make() {
  std::error_code ec;
  const fs::path temporary = fs::temp_directory_path(ec);
  if (ec) return sys_error(ec.value(), "TMPDIR", "cannot be used");
  return make_below(temporary);
}

Result<ScratchFolder> ScratchFolder::make_in_memory(const Before& before) {
  constexpr const char* kMemory = "/dev/shm";
  struct statfs what{};
  const bool there = ::statfs(kMemory, &what) == 0 && what.f_type == TMPFS_MAGIC && ::access(kMemory, W_OK) == 0;
  if (there) return make_below(kMemory, before);
  std::error_code ec;
  const fs::path temporary = fs::temp_directory_path(ec);
  if (ec) return sys_error(ec.value(), "TMPDIR", "cannot be used");
  return make_below(temporary, before);
}

Result<ScratchFolder> ScratchFolder::make_with(uint64_t room) {
  std::error_code ec;
  const fs::space_info there = fs::space(fs::temp_directory_path(ec), ec);
  return !ec && there.available < room ? make_in_memory() : make();
}

Result<ScratchFolder> ScratchFolder::make_below(const fs::path& temporary, const Before& before) {
  remove_abandoned(temporary);
  CKPT_TRY_ASSIGN(const std::string id, random_id());
  const fs::path path = temporary / (kPrefix + id);
  if (before) CKPT_TRY(before(path));
  if (::mkdir(path.c_str(), 0700) != 0) return sys_error(path.string(), "cannot be made");
  ScratchFolder out;
  out.path_ = path;
  CKPT_TRY_ASSIGN(out.lock_, io::open_file(out.path_, O_RDONLY | O_DIRECTORY));
  if (::flock(out.lock_.get(), LOCK_EX | LOCK_NB) != 0) return sys_error(path.string(), "cannot be locked");
  std::error_code ec;
  const fs::path canonical = fs::canonical(out.path_, ec);
  if (!ec) out.path_ = canonical;
  return out;
}

ScratchFolder& ScratchFolder::operator=(ScratchFolder&& other) noexcept {
  std::swap(lock_, other.lock_);
  std::swap(path_, other.path_);
  std::swap(owner_, other.owner_);
  return *this;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ec;
  if (!path_.empty() && ::getpid() == owner_) fs::remove_all(path_, ec);
}

}  // namespace ckpt::remote
