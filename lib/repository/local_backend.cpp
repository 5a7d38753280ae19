// A folder of this host.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <mutex>

#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/repository/backend.h"
#include "lib/repository/id.h"

namespace ckpt::repository {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTemporary = ".new-";
constexpr std::array kFolders = {kPacks, kIndex, kImages, kPushes, kCondemned, kDamaged};

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

/// The names in a folder. A stream of its own: that of a descriptor would share its position with others.
Result<std::vector<std::string>> names_in(int folder, const std::string& subject) {
  UniqueFd again(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::unique_ptr<DIR, CloseDir> dir(again ? ::fdopendir(again.get()) : nullptr);
  if (dir == nullptr) return sys_error(subject, "cannot be listed");
  again.release();
  std::vector<std::string> out;
  for (errno = 0; const dirent* entry = ::readdir(dir.get()); errno = 0) out.emplace_back(entry->d_name);
  if (errno != 0) return sys_error(subject, "cannot be listed");
  return out;
}

class LocalBackend final : public Backend {
 public:
  LocalBackend(std::string place, UniqueFd root, mode_t mode)
      : place_(std::move(place)), root_(std::move(root)), mode_(mode) {
    look_at(root_.get(), "");
  }

  /// `create`: its folders are made where they are missing.
  Result<void> open_folders(bool create) {
    for (const char* name : kFolders) {
      if (create && ::mkdirat(root_.get(), name, mode_) == 0) {
        // The umask may have taken from it what the store's own folder grants.
        (void)::fchmodat(root_.get(), name, mode_, 0);
      }
      UniqueFd fd(::openat(root_.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!fd && errno == ENOENT) continue;
      if (!fd) return sys_error(subject(name), "cannot be opened");
      look_at(fd.get(), name);
      folders_[name] = std::move(fd);
    }
    return create ? io::sync_fd(root_.get(), place_) : Result<void>();
  }

  Result<void> put(const std::string& name, ByteSpan bytes, bool only_if_absent) override {
    CKPT_TRY_ASSIGN(const Place place, find(name));
    CKPT_TRY_ASSIGN(const std::string random, random_hex(8));
    const std::string temporary = kTemporary + random;
    UniqueFd fd(::openat(place.folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd) return sys_error(subject(name), "cannot be written");
    // Held while it is written: one that nobody holds was left behind.
    (void)::flock(fd.get(), LOCK_EX | LOCK_NB);
    Result<void> done = write(fd.get(), bytes, name);
    if (done) done = give_name(place, temporary, only_if_absent, name);
    if (!done) ::unlinkat(place.folder, temporary.c_str(), 0);
    return done;
  }

  Result<std::vector<StoredObject>> list(const std::string& folder) override {
    std::vector<StoredObject> out;
    if (!folder.empty() && folders_.count(folder) == 0) return out;
    const int fd = folder.empty() ? root_.get() : folders_.at(folder).get();
    CKPT_TRY_ASSIGN(std::vector<std::string> names, names_in(fd, subject(folder)));
    for (std::string& name : names) {
      struct stat st {};
      if (!is_object_name(name) || ::fstatat(fd, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        continue;
      out.push_back({std::move(name), static_cast<uint64_t>(st.st_size)});
    }
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return out;
  }

  Result<StoredObject> look_up(const std::string& name) override {
    CKPT_TRY_ASSIGN(Place place, find(name));
    struct stat st {};
    if (::fstatat(place.folder, place.name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 && errno != ENOENT)
      return sys_error(subject(name), "cannot be looked at");
    if (!S_ISREG(st.st_mode)) return fail(Code::kNotFound, subject(name), "is not there");
    return StoredObject{std::move(place.name), static_cast<uint64_t>(st.st_size)};
  }

  Result<void> read(const std::string& name, uint64_t, uint64_t offset, MutableByteSpan out) override {
    CKPT_TRY_ASSIGN(const Place place, find(name));
    auto fd = io::open_regular(place.folder, place.name);
    if (!fd) {
      Error error = std::move(fd).error();
      error.subject = subject(name);
      return error;
    }
    look_at(fd->get(), name);
    return io::pread_exact(fd->get(), out, offset, subject(name));
  }

  Result<void> remove(const std::string& name) override {
    CKPT_TRY_ASSIGN(const Place place, find(name));
    if (::unlinkat(place.folder, place.name.c_str(), 0) != 0 && errno != ENOENT)
      return sys_error(subject(name), "cannot be removed");
    return io::sync_fd(place.folder, subject(name));
  }

  Result<void> tidy() override {
    CKPT_TRY(tidy(root_.get(), ""));
    for (const auto& [name, fd] : folders_) CKPT_TRY(tidy(fd.get(), name));
    return {};
  }

  std::string subject(const std::string& name) const override { return name.empty() ? place_ : place_ + "/" + name; }
  size_t good_read() const override { return 512 << 10; }

  std::optional<std::string> strangers() const override {
    std::lock_guard lock(mutex_);
    return strangers_;
  }

  /// Whose what was opened is, by its descriptor.
  void look_at(int fd, const std::string& name) {
    struct stat st {};
    const char* who = ::fstat(fd, &st) != 0                        ? "cannot be looked at"
                      : st.st_uid != 0 && st.st_uid != ::geteuid() ? "belongs to another user"
                      : (st.st_mode & (S_IWGRP | S_IWOTH)) != 0    ? "can be written by other users"
                                                                   : nullptr;
    if (who == nullptr) return;
    std::lock_guard lock(mutex_);
    if (!strangers_) strangers_ = subject(name) + " " + who;
  }

 private:
  struct Place {
    int folder = -1;
    std::string name;
  };

  Result<Place> find(const std::string& name) const {
    const size_t slash = name.find('/');
    const std::string last = slash == std::string::npos ? name : name.substr(slash + 1);
    if (!is_object_name(last)) return fail(Code::kUsage, subject(name), "is no name of an object");
    if (slash == std::string::npos) return Place{root_.get(), last};
    const auto folder = folders_.find(name.substr(0, slash));
    if (folder == folders_.end()) return fail(Code::kNotFound, subject(name), "is not there: the folder is missing");
    return Place{folder->second.get(), last};
  }

  Result<void> write(int fd, ByteSpan bytes, const std::string& name) {
    if (::fchmod(fd, mode_ & 0666) != 0) return sys_error(subject(name), "cannot set its mode");
    CKPT_TRY(io::write_all(fd, bytes, subject(name)));
    return io::sync_fd(fd, subject(name));
  }

  Result<void> give_name(const Place& place, const std::string& temporary, bool only_if_absent,
                         const std::string& name) {
    // Where the file system has no such rename (NFS), a second name does it.
    const bool moved = only_if_absent && ::renameat2(place.folder, temporary.c_str(), place.folder, place.name.c_str(),
                                                     RENAME_NOREPLACE) == 0;
    if (only_if_absent && !moved && errno == EEXIST) return fail(Code::kMismatch, subject(name), "is there already");
    if (only_if_absent) {
      if (!moved && ::linkat(place.folder, temporary.c_str(), place.folder, place.name.c_str(), 0) != 0) {
        if (errno == EEXIST) return fail(Code::kMismatch, subject(name), "is there already");
        return sys_error(subject(name), "cannot be given its name");
      }
      if (!moved) ::unlinkat(place.folder, temporary.c_str(), 0);
      Result<void> durable = io::sync_fd(place.folder, subject(name));
      if (!durable) ::unlinkat(place.folder, place.name.c_str(), 0);
      return durable;
    }
    if (::renameat(place.folder, temporary.c_str(), place.folder, place.name.c_str()) != 0) {
      return sys_error(subject(name), "cannot be given its name");
    }
    return io::sync_fd(place.folder, subject(name));
  }

  Result<void> tidy(int folder, const std::string& name) {
    CKPT_TRY_ASSIGN(const std::vector<std::string> names, names_in(folder, subject(name)));
    for (const std::string& one : names) {
      if (!one.starts_with(kTemporary)) continue;
      UniqueFd fd(::openat(folder, one.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(folder, one.c_str(), 0);
    }
    return {};
  }

  const std::string place_;
  UniqueFd root_;
  const mode_t mode_;
  std::map<std::string, UniqueFd> folders_;
  mutable std::mutex mutex_;
  std::optional<std::string> strangers_;
};

/// A folder that is there already is taken where it is a store or empty.
Result<UniqueFd> make_root(const std::string& place) {
  const fs::path path = fs::path(place).lexically_normal();
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno == ENOENT) {
    std::vector<fs::path> folders;
    CKPT_TRY(io::make_folders(path.has_filename() ? path.parent_path() : path.parent_path().parent_path(), folders));
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return sys_error(place, "cannot create the folder");
  } else if (!made && errno != EEXIST) {
    return sys_error(place, "cannot create the folder");
  }
  CKPT_TRY_ASSIGN(UniqueFd root, io::open_file(path, O_RDONLY | O_DIRECTORY));
  CKPT_TRY_ASSIGN(const std::vector<std::string> names, names_in(root.get(), place));
  const bool is_store = std::find(names.begin(), names.end(), kConfig) != names.end();
  for (const std::string& name : names) {
    const bool ours = std::find(kFolders.begin(), kFolders.end(), name) != kFolders.end() || name == "." ||
                      name == ".." || name == "lost+found" || name.starts_with(kTemporary);
    if (!is_store && !ours)
      return fail(Code::kUsage, place, "is a folder with something else in it (" + name + "), no store");
  }
  if (made) CKPT_TRY(io::sync_dir(fs::absolute(path).lexically_normal().parent_path()));
  return root;
}

}  // namespace

Result<std::unique_ptr<Backend>> open_local(const std::string& place, bool create) {
  UniqueFd root;
  if (create) {
    CKPT_TRY_ASSIGN(root, make_root(place));
  } else {
    auto opened = io::open_file(place, O_RDONLY | O_DIRECTORY);
    if (!opened && opened.error().code == Code::kNotFound)
      return fail(Code::kNotFound, place, "is no store: there is no such folder");
    if (!opened) return std::move(opened).error();
    root = std::move(*opened);
  }
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(root.get(), place));
  auto out = std::make_unique<LocalBackend>(place, std::move(root), st.st_mode & 0777);
  CKPT_TRY(out->open_folders(create));
  return std::unique_ptr<Backend>(std::move(out));
}

}  // namespace ckpt::repository
