#include "lib/base/staged_dir.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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

std::vector<fs::path> staging_folders(const fs::path& where, const std::string& prefix) {
  std::error_code ec;
  std::vector<fs::path> out;
  for (fs::directory_iterator it(where, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().filename().string().rfind(prefix, 0) == 0) out.push_back(it->path());
  }
  return out;
}

/// Locked: its owner is gone.
UniqueFd lock_abandoned(const fs::path& dir) {
  UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st{};
  const bool ours = fd && ::fstat(fd.get(), &st) == 0 && (st.st_uid == ::geteuid() || ::geteuid() == 0);
  if (!ours || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) fd.reset();
  return fd;
}

/// Removes staging folders of this destination whose owner is gone (nobody holds their lock).
void remove_abandoned(const fs::path& where, const std::string& prefix) {
  for (const fs::path& dir : staging_folders(where, prefix)) (void)remove_abandoned_staging(dir);
}

}  // namespace

bool remove_abandoned_staging(const fs::path& dir) {
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(dir, ec))) return true;
  UniqueFd lock = lock_abandoned(dir);
  if (!lock) return false;
  fs::remove_all(dir, ec);
  return !ec;
}

void remove_abandoned_staging_of(const fs::path& stem) {
  remove_abandoned(stem.parent_path(), kMarker + stem.filename().string());
}

std::vector<fs::path> find_abandoned_staging(const fs::path& where) {
  std::vector<fs::path> out = staging_folders(where, kMarker);
  std::erase_if(out, [](const fs::path& dir) { return !lock_abandoned(dir); });
  return out;
}

namespace {

/// In a folder where everybody may make entries, a link of somebody else's leads where he wants. The kernel refuses to
/// follow it only where fs.protected_symlinks is set, and names resolved by us are not its affair.
Result<void> check_links(const fs::path& path) {
  fs::path so_far;
  for (const fs::path& part : path) {
    struct stat folder{}, link{};
    const bool known = !so_far.empty() && ::stat(so_far.c_str(), &folder) == 0;
    so_far /= part;
    if (!known || ::lstat(so_far.c_str(), &link) != 0 || !S_ISLNK(link.st_mode)) continue;
    const bool open = (folder.st_mode & (S_IWOTH | S_IWGRP)) != 0 && link.st_uid != folder.st_uid;
    if (open && link.st_uid != ::geteuid() && link.st_uid != 0) {
      return Error(Code::kPermission, so_far.string(),
                   "is another user's symbolic link in a folder that others may write: it is not followed")
          .with_hint("name the folder that it leads to, if that is meant");
    }
  }
  return {};
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
  CKPT_TRY(check_links(destination_));
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
    return Error(Code::kUsage, subject, "exists and is not empty")
        .with_hint("choose another folder, or give --force to replace it");
  }
  if (!empty && inside_)
    return fail(Code::kUsage, subject, "is a mount point that is not empty: it cannot be replaced as a whole");
  return {};
}

Result<StagedDir> StagedDir::create(const fs::path& destination, bool force, Kind kind, Above above) {
  StagedDir out;
  CKPT_TRY(out.examine(destination, force, kind));
  fs::path where = out.inside_ ? out.destination_ : out.destination_.parent_path();
  std::string prefix = kMarker + (out.inside_ ? std::string() : out.destination_.filename().string() + "-");
  remove_abandoned(where, prefix);
  out.active_ = true;  // what was made is taken away again, however this ends
  if (above == Above::kMade) CKPT_TRY(io::make_folders(where, out.parents_));
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

Result<void> StagedDir::share() const {
  // A folder in it tells: asking umask(2) would change it for all threads, and /proc is not everywhere.
  const fs::path probe = staging_ / ".umask";
  struct stat st {};
  if (::mkdir(probe.c_str(), 0777) != 0 || ::stat(probe.c_str(), &st) != 0 || ::rmdir(probe.c_str()) != 0 ||
      ::chmod(staging_.c_str(), st.st_mode & 0777) != 0) {
    return sys_error(staging_.string(), "cannot set its mode");
  }
  return {};
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

namespace {

/// As of `like`, but for its content.
Result<void> set_attributes(int folder, const std::string& subject, const struct stat& like) {
  const timespec times[2] = {like.st_atim, like.st_mtim};
  if (::fchown(folder, like.st_uid, like.st_gid) != 0) return sys_error(subject, "its owner cannot be set");
  if (::fchmod(folder, like.st_mode & 07777) != 0) return sys_error(subject, "its mode cannot be set");
  if (::futimens(folder, times) != 0) return sys_error(subject, "its times cannot be set");
  return {};
}

}  // namespace

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
  const std::string subject = destination_.string();
  CKPT_TRY_ASSIGN(UniqueFd folder, io::open_file(destination_, O_RDONLY | O_DIRECTORY));
  CKPT_TRY_ASSIGN(const struct stat before, io::stat_fd(folder.get(), subject));
  CKPT_TRY_ASSIGN(UniqueFd staged, io::open_file(staging_, O_RDONLY | O_DIRECTORY));
  CKPT_TRY_ASSIGN(const struct stat wanted, io::stat_fd(staged.get(), staging_.string()));
  auto move_all = [&]() -> Result<void> {
    for (const fs::path& entry : entries) CKPT_TRY(move_up(entry));
    if (durable) CKPT_TRY(io::sync_fd(folder.get(), subject));
    if (!last.empty()) {
      CKPT_TRY(move_up(staging_ / last));
    } else {  // the folder itself is part of what was staged; its time is the last thing that changes
      if (::rmdir(staging_.c_str()) != 0) return sys_error(staging_.string(), "cannot be removed");
      CKPT_TRY(set_attributes(folder.get(), subject, wanted));
    }
    return durable ? io::sync_fd(folder.get(), subject) : Result<void>();
  };
  Result<void> moved = move_all();
  if (!moved) {  // the commit point first, as long as the rest is there
    if (!last.empty()) ::rename((destination_ / last).c_str(), (staging_ / last).c_str());
    if (last.empty()) ::mkdir(staging_.c_str(), 0700);
    for (const fs::path& entry : entries) ::rename((destination_ / entry.filename()).c_str(), entry.c_str());
    if (last.empty()) (void)set_attributes(folder.get(), subject, before);
  }
  rollback();
  return moved;
}

Result<void> StagedDir::commit_file(const std::string& last, bool durable) {
  const std::string from = (staging_ / last).string(), to = destination_.string();
  CKPT_TRY_ASSIGN(Parents parents, open_parents());
  auto move = [&](unsigned how) { return ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), how); };
  bool swapped = false;
  long done = move(RENAME_NOREPLACE);
  if (done != 0 && errno == EEXIST && force_) done = move(RENAME_EXCHANGE), swapped = done == 0;
  if (done != 0 && errno == EINVAL) done = ::rename(from.c_str(), to.c_str());  // a file system that cannot promise
  if (done != 0 && errno == EEXIST) return fail(Code::kUsage, to, "has come to exist meanwhile");
  if (done != 0) return sys_error(to, "cannot move the finished file into place");
  if (Result<void> synced = durable ? sync(parents) : Result<void>(); !synced) {
    swapped ? (void)move(RENAME_EXCHANGE) : (void)::rename(to.c_str(), from.c_str());
    return synced;
  }
  adopted_ = false;
  parents_.clear();
  std::error_code ec;
  fs::remove_all(staging_, ec);
  active_ = false;
  return {};
}

/// The folders whose entries the commit changes: opened before it, for afterwards nothing but their fsync may fail.
Result<StagedDir::Parents> StagedDir::open_parents() const {
  Parents out;
  std::vector<fs::path> dirs = {destination_.parent_path()};
  for (const fs::path& made : parents_) dirs.push_back(made.parent_path());
  for (fs::path& dir : dirs) {
    CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(dir, O_RDONLY | O_DIRECTORY));
    out.emplace_back(std::move(fd), dir.string());
  }
  return out;
}

Result<void> StagedDir::sync(const Parents& parents) {
  for (const auto& [fd, name] : parents) CKPT_TRY(io::sync_fd(fd.get(), name));
  return {};
}

Result<void> StagedDir::commit(const std::string& last, bool durable) {
  if (durable) CKPT_TRY(io::sync_tree(staging_));
  if (kind_ == Kind::kFile) return commit_file(last, durable);
  adopted_ = false;
  if (inside_) return commit_inside(last, durable);
  const std::string from = staging_.string(), to = destination_.string();
  CKPT_TRY_ASSIGN(Parents parents, open_parents());
  struct stat replaced{};
  const bool was_there = ::stat(to.c_str(), &replaced) == 0;
  if (::rename(from.c_str(), to.c_str()) != 0) {
    // A non-empty destination (--force): swap the two names in one step, then drop the old content.
    if (!force_ || (errno != ENOTEMPTY && errno != EEXIST))
      return sys_error(to, "cannot move the finished folder into place");
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
      return sys_error(to, "cannot replace the existing folder");
    }
    Result<void> synced = durable ? sync(parents) : Result<void>();
    if (!synced) (void)::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE);
    rollback();
    return synced;
  }
  if (Result<void> synced = durable ? sync(parents) : Result<void>(); !synced) {
    if (::rename(to.c_str(), from.c_str()) == 0 && was_there) ::mkdir(to.c_str(), replaced.st_mode & 07777);
    rollback();
    return synced;
  }
  active_ = false;
  lock_.reset();
  return {};
}

}  // namespace ckpt
