#include "lib/state/files/ghosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lib/base/io.h"
#include "lib/state/files/extended_attributes.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/files/write_hint.h"

namespace ckpt::restore {

namespace {

using store::FileIdentity;

/// A path in pieces, without empty ones.
std::vector<std::string> pieces_of(const std::string& path) {
  std::vector<std::string> out;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    if (end != at) out.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

/// The folders that a path leads through, opened one by one, no link followed; what is missing is made, and goes away
/// with the object. For the child of run_with: plain system calls only.
class Way {
 public:
  /// Negative: -errno.
  int open(const std::vector<std::string>& pieces) {
    dir_ = state::open_tree_root();
    if (dir_ < 0) return dir_;
    for (size_t i = 0; dir_ >= 0 && i + 1 < pieces.size(); ++i) {
      const char* name = pieces[i].c_str();
      int next = ::openat(dir_, name, kFolder);
      if (next < 0 && errno == ENOENT && made_count_ < made_.size() && ::mkdirat(dir_, name, 0700) == 0) {
        next = ::openat(dir_, name, kFolder);
        made_[made_count_++] = {::dup(dir_), name};
      }
      const int error = errno;
      ::close(dir_);
      dir_ = next;
      if (next < 0) return -error;
    }
    return dir_ < 0 ? -errno : 0;
  }
  void close() {
    if (dir_ >= 0) ::close(dir_);
    while (made_count_ != 0) {
      const Made& last = made_[--made_count_];
      (void)::unlinkat(last.parent, last.name, AT_REMOVEDIR);
      ::close(last.parent);
    }
  }
  int dir() const { return dir_; }

 private:
  static constexpr int kFolder = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  struct Made {
    int parent;
    const char* name;
  };
  int dir_ = -1;
  std::array<Made, 64> made_{};
  size_t made_count_ = 0;
};

/// A new file of this kind; -1 and errno. The name is new, too: what is there already, a link included, is in the way.
int make_at(int dir, const char* name, mode_t mode) {
  if (S_ISDIR(mode))
    return ::mkdirat(dir, name, 0700) == 0 ? ::openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
  if (S_ISFIFO(mode))
    return ::mknodat(dir, name, S_IFIFO | 0600, 0) == 0
               ? ::openat(dir, name, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC)
               : -1;
  return ::openat(dir, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
}

constexpr int kMostNames = 100;  ///< tried, where the one wanted is taken

struct Leaf {
  std::array<char, 300> name{};
  int attempt = 0;  ///< 0: as it was
};

/// Calls `make(name)` with the name wanted, then with others beside it.
template <class Make>
int with_free_name(const std::string& wanted, Leaf& leaf, Make make) {
  for (leaf.attempt = 0; leaf.attempt < kMostNames; ++leaf.attempt) {
    if (leaf.attempt == 0) std::snprintf(leaf.name.data(), leaf.name.size(), "%s", wanted.c_str());
    else std::snprintf(leaf.name.data(), leaf.name.size(), "%s.%d", wanted.c_str(), leaf.attempt);
    const int made = make(leaf.name.data());
    if (made >= 0 || errno != EEXIST) return made;
  }
  return -1;
}

void take_name_away(int dir, const Leaf& leaf, mode_t mode) {
  (void)::unlinkat(dir, leaf.name.data(), S_ISDIR(mode) ? AT_REMOVEDIR : 0);
}

/// In the child: another name for the file behind `path_of_file`, a link of /proc. A descriptor; negative: -errno.
int link_name(const char* path_of_file, const std::vector<std::string>& pieces) {
  Way way;
  int result = way.open(pieces);
  Leaf leaf;
  if (result == 0) {
    result = with_free_name(pieces.back(), leaf, [&](const char* name) {
      return ::linkat(AT_FDCWD, path_of_file, way.dir(), name, AT_SYMLINK_FOLLOW);
    });
    if (result == 0) {
      result = ::openat(way.dir(), leaf.name.data(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
      if (result < 0) result = -errno;
      take_name_away(way.dir(), leaf, S_IFREG);
    } else {
      result = -errno;
    }
  }
  way.close();
  return result;
}

/// What the child has to do, and what came of it.
struct Plan {
  std::vector<std::vector<std::string>> names;
  mode_t mode;
  bool temporary;  ///< O_TMPFILE: it never had a name
  const std::vector<int>& opens;
  int* fds;        ///< by name, then by `opens`
  int* attempt;
};

int make_with_names(const Plan& plan) {
  ::umask(022);
  Way way;
  const std::vector<std::string>& first = plan.names[0];
  if (int failed = way.open(first); failed != 0) return way.close(), failed;
  Leaf leaf;
  const int fd = plan.temporary ? ::openat(way.dir(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                                : with_free_name(first.back(), leaf,
                                                 [&](const char* name) { return make_at(way.dir(), name, plan.mode); });
  const int error = errno;
  if (fd >= 0) {
    std::array<char, 64> link{};
    std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
    for (size_t i = 1; i < plan.names.size(); ++i) plan.fds[i] = link_name(link.data(), plan.names[i]);
    for (size_t i = 0; i < plan.opens.size() && !plan.temporary; ++i)
      plan.fds[plan.names.size() + i] = ::openat(way.dir(), leaf.name.data(), plan.opens[i] | O_NOFOLLOW | O_CLOEXEC);
    if (!plan.temporary) take_name_away(way.dir(), leaf, plan.mode);
    plan.fds[0] = fd;
    *plan.attempt = leaf.attempt;
  }
  way.close();
  return fd < 0 ? -error : 0;
}

bool same_inode(int a, int b) {
  struct stat one{}, other{};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

/// O_TMPFILE shows as "#INODE": it never had a name, and may still get one.
bool is_temporary(const FileIdentity& file) {
  return S_ISREG(file.mode) && file.path.substr(file.path.rfind('/') + 1) == fmt::format("#{}", file.inode);
}

Result<Ghost> make_by_name(const std::vector<const FileIdentity*>& entries, const std::vector<int>& opens,
                           const Rights& rights, ProgressSink& progress) {
  const FileIdentity& file = *entries[0];
  CKPT_TRY_ASSIGN(SharedValues values, SharedValues::create());
  Plan plan{{}, file.mode, is_temporary(file), opens, values.values() + 1, values.values()};
  for (const FileIdentity* entry : entries) {
    plan.names.push_back(pieces_of(entry->path));
    if (plan.names.back().empty()) return fail(Code::kMismatch, entry->path, "cannot be a name");
  }
  const size_t count = entries.size() + opens.size();
  constexpr size_t kOwn = 1;  // the attempt
  if (count + kOwn > SharedValues::kValues) return fail(Code::kUnsupported, file.path, "was open too often");
  std::fill_n(plan.fds, count, -1);
  CKPT_TRY_ASSIGN(int result, run_with(rights, [&] { return make_with_names(plan); }));
  Ghost out;
  out.file = UniqueFd(plan.fds[0]);
  for (size_t i = 1; i < entries.size(); ++i) out.other_names.emplace_back(plan.fds[i]);
  for (size_t i = 0; i < opens.size(); ++i) out.opened.emplace_back(plan.fds[entries.size() + i]);
  if (result < 0) return sys_error(-result, file.path, "cannot be made again by its user");
  struct stat st{};
  // What somebody has given a name meanwhile must not get another owner or mode.
  if (::fstat(out.file.get(), &st) != 0 || st.st_nlink != 0 || (st.st_mode & S_IFMT) != (file.mode & S_IFMT))
    return fail(Code::kBusy, file.path, "was taken by somebody while it was made again");
  for (auto* fds : {&out.other_names, &out.opened}) {
    for (UniqueFd& fd : *fds) {
      if (fd && !same_inode(fd.get(), out.file.get())) fd.reset();
    }
  }
  if (*plan.attempt != 0)
    progress.note(fmt::format("{}: was deleted while in use; its name is taken now, it comes back as {}.{}", file.path,
                              file.path, *plan.attempt));
  return out;
}

/// In a folder that ckpt alone may enter.
Result<UniqueFd> make_in_scratch(const FileIdentity& file) {
  std::string pattern = (std::filesystem::temp_directory_path() / "ckpt-ghost-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) return sys_error(pattern, "cannot make a folder");
  CKPT_TRY_ASSIGN(UniqueFd dir, io::open_file(pattern, O_PATH | O_DIRECTORY | O_NOFOLLOW));
  struct stat st{};
  if (::fstat(dir.get(), &st) != 0 || st.st_uid != ::geteuid() || (st.st_mode & 0777) != 0700)
    return fail(Code::kBusy, pattern, "is not the folder that was made");
  Leaf leaf;
  UniqueFd out(with_free_name("file", leaf, [&](const char* name) { return make_at(dir.get(), name, file.mode); }));
  const int error = errno;
  if (out) take_name_away(dir.get(), leaf, file.mode);
  ::rmdir(pattern.c_str());
  if (!out) return sys_error(error, file.path, "was deleted while in use, and cannot be made again");
  return out;
}

/// The file system that it was on, as far as its folders are there.
Result<UniqueFd> make_without_name(const FileIdentity& file, const Rights& rights) {
  if (!S_ISREG(file.mode)) return make_in_scratch(file);
  UniqueFd dir(state::open_tree_root());
  for (const std::string& piece : pieces_of(file.path)) {
    UniqueFd next(::openat(dir.get(), piece.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!next) break;
    dir = std::move(next);
  }
  // With O_EXCL it never gets a name again: another user's file, set-user-id perhaps, must not.
  const int exclusive = is_temporary(file) && file.uid == rights.uid ? 0 : O_EXCL;
  UniqueFd out(::openat(dir.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC | exclusive, 0600));
  if (out) return out;
  return make_in_scratch(file);
}

Result<void> set_attributes(int fd, const FileIdentity& file) {
  struct stat st{};
  if (::fstat(fd, &st) != 0) return sys_error(file.path, "cannot be described");
  const bool owned = st.st_uid == file.uid && st.st_gid == file.gid;
  if (!owned && ::fchown(fd, file.uid, file.gid) != 0) return sys_error(file.path, "cannot be given its owner");
  if (::fchmod(fd, file.mode & 07777) != 0) return sys_error(file.path, "cannot be given its mode");
  if (S_ISREG(file.mode) && ::ftruncate(fd, static_cast<off_t>(file.size)) != 0)
    return sys_error(file.path, "cannot be given its size");
  CKPT_TRY(state::set_write_hint(fd, file.write_hint, file.path));
  return state::set_extended_attributes(fd, file.attributes, file.path);
}

}  // namespace

Result<Ghost> make_ghost(const std::vector<const FileIdentity*>& entries, const std::vector<int>& opens,
                         const Rights& rights, ProgressSink& progress) {
  const FileIdentity& file = *entries[0];
  auto made = make_by_name(entries, opens, rights, progress);
  if (!made) {
    Ghost nameless;
    CKPT_TRY_ASSIGN(nameless.file, make_without_name(file, rights));
    nameless.other_names.resize(entries.size() - 1);
    nameless.opened.resize(opens.size());
    progress.note(
        fmt::format("{}: was deleted while in use; it comes back under no name ({})", file.path, made.error().text()));
    made = std::move(nameless);
  }
  CKPT_TRY(set_attributes(made->file.get(), file));
  return made;
}

UniqueFd name_again(int file, const std::string& path, const Rights& rights) {
  const std::string link = fmt::format("/proc/self/fd/{}", file);
  const std::vector<std::string> pieces = pieces_of(path);
  if (pieces.empty()) return UniqueFd();
  auto named = run_with(rights, [&] { return link_name(link.c_str(), pieces); });
  UniqueFd out(named && *named >= 0 ? *named : -1);
  if (out && !same_inode(out.get(), file)) out.reset();
  return out;
}

}  // namespace ckpt::restore
