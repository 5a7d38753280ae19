#include "lib/base/staged_dir.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/syscall.h>

#include <cerrno>
#include <vector>

#include "lib/base/io.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMarker = ".ckpt-staging-";

bool is_mount_point(const fs::path& dir) {
  struct stat self{}, parent{};
  if (::stat(dir.c_str(), &self) != 0 || ::stat((dir / "..").c_str(), &parent) != 0) return false;
  return self.st_dev != parent.st_dev || self.st_ino == parent.st_ino;
}

/// Removes staging folders of this destination whose owner is gone (nobody holds their lock).
void remove_abandoned(const fs::path& where, const std::string& prefix) {
  std::error_code ec;
  std::vector<fs::path> stale;
  for (fs::directory_iterator it(where, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().filename().string().rfind(prefix, 0) == 0) stale.push_back(it->path());
  }
  for (const fs::path& dir : stale) {
    UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(dir, ec);
  }
}

}  // namespace

/// May the destination be used?
Result<void> StagedDir::examine(const fs::path& destination, bool force, Kind kind) {
  std::error_code ec;
  destination_ = fs::absolute(destination, ec).lexically_normal();
  if (!destination_.has_filename()) destination_ = destination_.parent_path();
  force_ = force;
  kind_ = kind;
  const std::string subject = destination.string();
  auto status = fs::symlink_status(destination_, ec);
  if (fs::is_symlink(status)) {
    destination_ = fs::canonical(destination_, ec);
    if (ec) return fail(Code::kUsage, subject, "is a symbolic link that leads nowhere");
    status = fs::status(destination_, ec);
  }
  if (!fs::exists(status)) return {};
  if (kind == Kind::kFile) {
    if (!fs::is_regular_file(status)) return fail(Code::kUsage, subject, "exists and is not a file");
    if (force) return {};
    return Error(Code::kUsage, subject, "exists").with_hint("choose another name, or give --force to replace it");
  }
  if (!fs::is_directory(status)) return fail(Code::kUsage, subject, "exists and is not a folder");
  fs::directory_iterator first(destination_, ec);
  if (ec) return sys_error(ec.value(), subject, "cannot list");
  inside_ = is_mount_point(destination_);
  bool empty = true;
  for (; !ec && first != fs::directory_iterator(); first.increment(ec)) {
    std::string name = first->path().filename().string();
    if (inside_ && (name == "lost+found" || name.rfind(kMarker, 0) == 0)) continue;
    empty = false;
  }
  if (!empty && !force) {
    return Error(Code::kUsage, subject, "exists and is not empty").with_hint("choose another folder, or give --force to replace it");
  }
  if (!empty && inside_) return fail(Code::kUsage, subject, "is a mount point that is not empty: it cannot be replaced as a whole");
  return {};
}

Result<StagedDir> StagedDir::create(const fs::path& destination, bool force, Kind kind) {
  StagedDir out;
  CKPT_TRY(out.examine(destination, force, kind));
  fs::path where = out.inside_ ? out.destination_ : out.destination_.parent_path();
  std::string prefix = kMarker + (out.inside_ ? std::string() : out.destination_.filename().string() + "-");
  remove_abandoned(where, prefix);
  CKPT_TRY(out.make_parents(where));
  CKPT_TRY(out.make_staging(where, prefix));
  return out;
}

Result<StagedDir> StagedDir::adopt(const fs::path& staging, const fs::path& destination, bool force, Kind kind) {
  StagedDir out;
  CKPT_TRY(out.examine(destination, force, kind));
  out.staging_ = staging;
  out.adopted_ = true;
  out.active_ = true;
  return out;
}

Result<void> StagedDir::make_parents(const fs::path& where) {
  active_ = true;  // what was made is taken away again, however this ends
  std::vector<fs::path> missing;
  std::error_code ec;
  for (fs::path dir = where; !dir.empty() && !fs::exists(dir, ec) && !ec; dir = dir.parent_path()) missing.push_back(dir);
  for (auto dir = missing.rbegin(); dir != missing.rend(); ++dir) {
    if (::mkdir(dir->c_str(), 0777) != 0 && errno != EEXIST) return sys_error(dir->string(), "cannot create the folder");
    parents_.push_back(*dir);
  }
  return {};
}

Result<void> StagedDir::make_staging(const fs::path& where, const std::string& prefix) {
  // Until the lock is held, another ckpt may take the new folder for an abandoned one: then it is gone, and the next
  // attempt makes another.
  for (int attempt = 0; attempt < 16; ++attempt) {
    std::string name = (where / (prefix + "XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) return sys_error(where.string(), "cannot create a staging folder");
    UniqueFd lock(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat locked{}, named{};
    if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(lock.get(), &locked) == 0 &&
        ::stat(name.c_str(), &named) == 0 && locked.st_ino == named.st_ino) {
      staging_ = name;
      lock_ = std::move(lock);
      active_ = true;
      return {};
    }
    ::rmdir(name.c_str());
  }
  return fail(Code::kBusy, where.string(), "cannot lock a staging folder");
}

StagedDir::StagedDir(StagedDir&& other) noexcept { *this = std::move(other); }

StagedDir& StagedDir::operator=(StagedDir&& other) noexcept {
  if (this == &other) return *this;
  rollback();
  destination_ = std::move(other.destination_);
  staging_ = std::move(other.staging_);
  lock_ = std::move(other.lock_);
  inside_ = other.inside_;
  kind_ = other.kind_;
  adopted_ = other.adopted_;
  force_ = other.force_;
  active_ = std::exchange(other.active_, false);
  parents_ = std::move(other.parents_);
  return *this;
}

StagedDir::~StagedDir() { rollback(); }

void StagedDir::rollback() noexcept {
  if (!std::exchange(active_, false)) return;
  std::error_code ec;
  if (!staging_.empty() && !adopted_) fs::remove_all(staging_, ec);
  for (auto dir = parents_.rbegin(); dir != parents_.rend(); ++dir) ::rmdir(dir->c_str());  // fails where others use it
  parents_.clear();
}

Result<void> StagedDir::commit_inside(const std::string& last, bool durable) {
  std::error_code ec;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(staging_, ec)) {
    if (entry.path().filename() != last) entries.push_back(entry.path());
  }
  if (ec) return sys_error(ec.value(), staging_.string(), "cannot list");
  auto move_up = [&](const fs::path& from) -> Result<void> {
    fs::rename(from, destination_ / from.filename(), ec);
    if (ec) return sys_error(ec.value(), from.string(), "cannot move into place");
    return {};
  };
  for (const fs::path& entry : entries) CKPT_TRY(move_up(entry));
  if (durable) CKPT_TRY(io::sync_dir(destination_));
  CKPT_TRY(move_up(staging_ / last));
  if (durable) CKPT_TRY(io::sync_dir(destination_));
  rollback();
  return {};
}

Result<void> StagedDir::commit_file(const std::string& last, bool durable) {
  const std::string from = (staging_ / last).string(), to = destination_.string();
  const unsigned how = force_ ? 0 : RENAME_NOREPLACE;
  long done = ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), how);
  if (done != 0 && errno == EINVAL) done = ::rename(from.c_str(), to.c_str());  // a file system that cannot promise
  if (done != 0 && errno == EEXIST) return fail(Code::kUsage, to, "has come to exist meanwhile");
  if (done != 0) return sys_error(to, "cannot move the finished file into place");
  if (durable) CKPT_TRY(io::sync_dir(destination_.parent_path()));
  adopted_ = false;
  parents_.clear();
  std::error_code ec;
  fs::remove_all(staging_, ec);
  active_ = false;
  return {};
}

Result<void> StagedDir::commit(const std::string& last, bool durable) {
  if (durable) CKPT_TRY(io::sync_tree(staging_));
  if (kind_ == Kind::kFile) return commit_file(last, durable);
  adopted_ = false;
  if (inside_) return commit_inside(last, durable);
  const std::string from = staging_.string(), to = destination_.string();
  if (::rename(from.c_str(), to.c_str()) != 0) {
    // A non-empty destination (--force): swap the two names in one step, then drop the old content.
    if (!force_ || (errno != ENOTEMPTY && errno != EEXIST)) return sys_error(to, "cannot move the finished folder into place");
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
      return sys_error(to, "cannot replace the existing folder");
    }
    if (durable) CKPT_TRY(io::sync_dir(destination_.parent_path()));
    rollback();
    return {};
  }
  active_ = false;
  lock_.reset();
  if (!durable) return {};
  for (const fs::path& made : parents_) CKPT_TRY(io::sync_dir(made.parent_path()));
  return io::sync_dir(destination_.parent_path());
}

}  // namespace ckpt
