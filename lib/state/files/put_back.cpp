#include "lib/state/files/put_back.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "lib/base/io.h"
#include "lib/state/files/contents.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/files/without_links.h"
#include "lib/state/shared_memory/restore.h"

namespace ckpt::restore {

using store::FileIdentity;

Result<void> set_time_of_change(int fd, const FileIdentity& file) {
  const timespec times[2] = {{0, UTIME_OMIT}, {file.mtime_ns / 1'000'000'000, file.mtime_ns % 1'000'000'000}};
  if (::futimens(fd, times) != 0) return sys_error(path_of(file), "cannot be given its time of change");
  return {};
}

namespace {

const FileIdentity& file_of(const store::TreeImage& tree, int index) {
  return tree.files[static_cast<size_t>(index)];
}

bool is_missing(const Error& error) { return error.code == Code::kNotFound; }

/// In the child of run_with. The folder that a path leads to, no link followed, missing ones made; the last piece is in
/// `name`. Negative: -errno.
int open_folder_of(const char* path, std::array<char, 256>& name) {
  constexpr int kFolder = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int dir = state::open_tree_root();
  for (const char* at = path; dir >= 0;) {
    while (*at == '/') ++at;
    const size_t length = std::strcspn(at, "/");
    if (length == 0 || length >= name.size()) {
      ::close(dir);
      return -EINVAL;
    }
    std::memcpy(name.data(), at, length);
    name[length] = '\0';
    at += length;
    if (*at == '\0') return dir;
    int next = ::openat(dir, name.data(), kFolder);
    if (next < 0 && errno == ENOENT && ::mkdirat(dir, name.data(), 0755) == 0)
      next = ::openat(dir, name.data(), kFolder);
    const int error = errno;
    ::close(dir);
    dir = next < 0 ? -error : next;
  }
  return dir;
}

/// In the child: `make(folder, name)`, which is not negative where it is done. -errno.
template <class Make>
int in_folder_of(const char* path, Make make) {
  std::array<char, 256> name{};
  ::umask(0);
  const int dir = open_folder_of(path, name);
  if (dir < 0) return dir;
  const int made = make(dir, name.data());
  const int result = made < 0 ? -errno : made;
  ::close(dir);
  return result;
}

/// A new file: its owner is whoever makes it, so that it gets no bits that would have others act for him.
Result<UniqueFd> make_file(const FileIdentity& file, const Rights& rights, ProgressSink& progress) {
  const std::string& path = path_of(file);
  CKPT_TRY_ASSIGN(const int fd, run_with(rights, [&] {
    return in_folder_of(path.c_str(), [&](int dir, const char* name) {
      constexpr int kNew = O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC;
      return ::openat(dir, name, kNew, file.mode & 0777);
    });
  }));
  if (fd < 0) return sys_error(-fd, path, fmt::format("is missing, and user {} cannot make it", rights.uid));
  UniqueFd out(fd);
  struct stat st{};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return fail(Code::kBusy, path, "is not the file that was made");
  // One that stays empty, since something else fails, is not to be newer than the image the next time.
  CKPT_TRY(set_time_of_change(fd, file));
  // A group of the user's own he may give it.
  if (st.st_gid != file.gid && std::find(rights.groups.begin(), rights.groups.end(), file.gid) != rights.groups.end())
    (void)!::fchown(fd, static_cast<uid_t>(-1), file.gid);
  if (::fstat(fd, &st) == 0 && (st.st_uid != file.uid || st.st_gid != file.gid))
    progress.note(fmt::format("{}: was of user {}, group {}, and is made again as of user {}, group {}", path, file.uid,
                              file.gid, st.st_uid, st.st_gid));
  return out;
}

/// It is there, and may not be written here, or not now.
bool may_not_be_written(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == ETXTBSY;
}

Result<UniqueFd> open_file_there(const FileIdentity& file, const FileNow& now, bool written, const Rights& rights) {
  const std::string& path = path_of(file);
  const auto open_for = [&](int access) -> Result<int> {
    const int how = access | O_NONBLOCK | O_NOCTTY;
    if (!written || !is_theirs_already(file, now))
      return run_with(rights, [&] { return open_without_links(path.c_str(), how | O_NOFOLLOW); });
    const int own = ::open(fmt::format("/proc/self/fd/{}", now.handle.get()).c_str(), how | O_CLOEXEC);
    return own < 0 ? -errno : own;
  };
  CKPT_TRY_ASSIGN(int fd, open_for(O_RDWR));
  const int error = -fd;
  if (may_not_be_written(error)) {
    CKPT_TRY_ASSIGN(fd, open_for(O_RDONLY));
  }
  if (fd < 0)
    return sys_error(error, path, fmt::format("cannot be opened by user {} to put its content back", rights.uid));
  UniqueFd out(fd);
  struct stat st{};
  if (::fstat(fd, &st) != 0 || st.st_ino != now.st.stx_ino || st.st_dev != now.device())
    return fail(Code::kBusy, path, "is being replaced while it is opened");
  return out;
}

Result<void> link_file(int fd, const std::string& path, const Rights& rights) {
  std::array<char, 64> link{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  CKPT_TRY_ASSIGN(const int done, run_with(rights, [&] {
    return in_folder_of(path.c_str(), [&](int dir, const char* name) {
      return ::linkat(AT_FDCWD, link.data(), dir, name, AT_SYMLINK_FOLLOW);
    });
  }));
  if (done < 0) return sys_error(-done, path, fmt::format("is missing, and user {} cannot link it again", rights.uid));
  return {};
}

/// The packed pages of a block where they belong; what has none is zero.
void unpack(const store::ImageReader::ResolvedBlock& block, ByteSpan packed, MutableByteSpan out) {
  std::memset(out.data(), 0, out.size());
  for (unsigned page = 0, from = 0; page < store::kBlockPages; ++page) {
    if ((block.data_mask >> page & 1) == 0) continue;
    std::memcpy(out.data() + page * store::kPageSize, packed.data() + from++ * store::kPageSize, store::kPageSize);
  }
}

/// Whether the first `size` bytes are those of the image.
Result<bool> begins_with(const store::ImageReader& image, const FileIdentity& file, int fd, const Cancel& cancel) {
  std::vector<std::byte> packed(store::kBlockSize), wanted(store::kBlockSize), there(store::kBlockSize);
  auto [next, last] = image.blocks_of(file.space);
  const uint64_t base = store::space_base(file.space);
  for (uint64_t at = 0; at < file.size; at += store::kBlockSize) {
    CKPT_TRY(cancel.check());
    while (next < last && image.blocks()[next].address - base < at) ++next;
    store::ImageReader::ResolvedBlock block{};
    if (next < last && image.blocks()[next].address - base == at) {
      block = image.blocks()[next];
      CKPT_TRY(image.read_block(next, packed));
    }
    unpack(block, packed, wanted);
    const uint64_t size = std::min(store::kBlockSize, file.size - at);
    CKPT_TRY(io::pread_exact(fd, MutableByteSpan(there).first(size), at, path_of(file)));
    if (std::memcmp(there.data(), wanted.data(), size) != 0) return false;
  }
  return true;
}

bool is_for_reading(int fd) { return (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY; }

Error unlike_and_unwritable(const FileIdentity& file) {
  return Error(Code::kPermission, path_of(file), "is not as the image has it, and cannot be written")
      .with_hint("--files-root DIR puts it elsewhere");
}

Result<bool> is_same(const store::ImageReader& image, const FileIdentity& file, int fd, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd, path_of(file)));
  return static_cast<uint64_t>(st.st_size) == file.size ? begins_with(image, file, fd, cancel) : Result<bool>(false);
}

/// The content is written: that it is newer than the image the next time is no reason to fail.
void set_time_or_note(int fd, const FileIdentity& file, ProgressSink& progress) {
  if (!set_time_of_change(fd, file)) progress.note(path_of(file) + ": keeps its time of change, which cannot be set");
}

/// Whether there was anything to change.
Result<bool> put_back_one(const store::ImageReader& image, const FileIdentity& file, int fd, ProgressSink& progress,
                          const Cancel& cancel) {
  const std::string& path = path_of(file);
  CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd, path));
  bool same = static_cast<uint64_t>(st.st_size) >= file.size;
  if (same) {
    CKPT_TRY_ASSIGN(same, begins_with(image, file, fd, cancel));
  }
  const bool has_size = static_cast<uint64_t>(st.st_size) == file.size;
  if (same && has_size && mtime_ns(st) == file.mtime_ns) return false;
  if (is_for_reading(fd) && (!same || !has_size)) return unlike_and_unwritable(file);
  if (same && has_size) {
    set_time_or_note(fd, file, progress);
    return true;
  }
  // What follows lets nobody see the end of one content behind the beginning of another.
  if (!same && ::ftruncate(fd, 0) != 0) return sys_error(path, "cannot be emptied to put its content back");
  Result<void> filled;
  if (::ftruncate(fd, static_cast<off_t>(file.size)) != 0) filled = sys_error(path, "cannot be given its size");
  if (filled && !same) {
    auto done = fill_file(image, file.space, file.size, fd, progress, cancel);
    if (!done) filled = std::move(done).error();
  }
  set_time_or_note(fd, file, progress);  // also of half of it, which another attempt is to find as old as this
  if (filled) return true;
  Error error = std::move(filled).error();
  if (error.subject.find(path) == std::string::npos) error.message = path + ": " + error.message;
  return std::move(error).with_hint(path + " has the image's content in part, or none");
}

Error with_count(Error error, size_t changed) {
  if (changed == 0) return error;
  const std::string rest = fmt::format("{} other file{} been put back", changed, changed == 1 ? " has" : "s have");
  return std::move(error).with_hint(error.hint.empty() ? rest : error.hint + "; " + rest);
}

}  // namespace

/// A name that leads up would lead out of a folder that they are to be put in.
Result<void> validate_contents(const store::TreeImage& tree) {
  for (const ContentNames& names : content_names(tree)) {
    for (int index : names) {
      const FileIdentity& file = file_of(tree, index);
      const std::string path = path_of(file) + "/";
      const bool is_plain = path[0] == '/' && path.size() > 2 && path.find("/../") == std::string::npos &&
                            path.find("/./") == std::string::npos && path.find('\0') == std::string::npos;
      if (!is_plain || !S_ISREG(file.mode) || file.size > state::kMostContent)
        return fail(Code::kCorrupt, "the image", "contradicts itself: the content of what is no regular file");
    }
  }
  return {};
}

void move_contents(store::TreeImage& tree, const std::string& root) {
  uint64_t inode = ~uint64_t{0};  // no file has such a one: none that is there is taken for it
  for (const ContentNames& names : content_names(tree)) {
    --inode;
    for (int index : names) {
      FileIdentity& file = tree.files[static_cast<size_t>(index)];
      file.path = root + path_of(file);
      file.deleted = false, file.other_name.clear();
      file.device = 0, file.inode = inode;
    }
  }
}

std::vector<ContentNames> content_names(const store::TreeImage& tree) {
  std::vector<ContentNames> out;
  std::map<std::pair<uint64_t, uint64_t>, size_t> known;
  for (size_t i = 0; i < tree.files.size(); ++i) {
    const FileIdentity& file = tree.files[i];
    if (!state::has_content(file)) continue;
    known[{file.device, file.inode}] = out.size();
    out.push_back({static_cast<int>(i)});
  }
  for (size_t i = 0; i < tree.files.size(); ++i) {
    const FileIdentity& file = tree.files[i];
    const auto found = known.find({file.device, file.inode});
    const bool has_name = S_ISREG(file.mode) && !(file.deleted && file.other_name.empty());
    if (found != known.end() && has_name && out[found->second][0] != static_cast<int>(i))
      out[found->second].push_back(static_cast<int>(i));
  }
  return out;
}

void check_content(const store::TreeImage& tree, const ContentNames& names, bool force, Reasons& reasons) {
  std::optional<std::pair<dev_t, uint64_t>> there;
  for (int index : names) {
    const FileIdentity& file = file_of(tree, index);
    const std::string& path = path_of(file);
    auto now = look_at(file);
    if (!now && is_missing(now.error())) continue;
    if (!now) return reasons.add(now.error());
    if (!S_ISREG(now->st.stx_mode))
      return reasons.add(Code::kMismatch, path + ": is no regular file, and the content of one is to be put back");
    const std::pair<dev_t, uint64_t> inode{now->device(), now->st.stx_ino};
    if (there && *there != inode)
      return reasons.add(Code::kMismatch, path + ": was the same file as " + path_of(file_of(tree, names[0])) +
                                              ", and is another one now");
    there = inode;
    if (!force && mtime_ns(now->st) > file_of(tree, names[0]).mtime_ns) {
      reasons.add(Code::kMismatch, path + ": is newer than what the image has of it");
      return reasons.hint("--force puts back what the image has; --files-root DIR puts it elsewhere");
    }
  }
}

Result<UniqueFd> open_content(const store::TreeImage& tree, const ContentNames& names, bool written,
                              const Rights& rights, ProgressSink& progress) {
  UniqueFd out;
  std::vector<int> missing;
  for (int index : names) {
    auto now = look_at(file_of(tree, index));
    if (!now && is_missing(now.error())) missing.push_back(index);
    else if (!now) return std::move(now).error();
    else if (!out) {
      CKPT_TRY_ASSIGN(out, open_file_there(file_of(tree, index), *now, written, rights));
    }
  }
  for (int index : missing) {
    if (out) {
      CKPT_TRY(link_file(out.get(), path_of(file_of(tree, index)), rights));
    } else {
      CKPT_TRY_ASSIGN(out, make_file(file_of(tree, index), rights, progress));
    }
  }
  return out;
}

Result<void> check_unwritable(const store::ImageReader& image, const std::map<int, UniqueFd>& files,
                              const Cancel& cancel) {
  for (const auto& [index, fd] : files) {
    if (!is_for_reading(fd.get())) continue;
    const FileIdentity& file = file_of(image.manifest().tree, index);
    CKPT_TRY_ASSIGN(const bool same, is_same(image, file, fd.get(), cancel));
    if (!same) return unlike_and_unwritable(file);
  }
  return {};
}

Result<size_t> put_back(const store::ImageReader& image, const std::map<int, UniqueFd>& files, ProgressSink& progress,
                        const Cancel& cancel) {
  size_t changed = 0;
  for (const auto& [index, fd] : files) {
    auto done = put_back_one(image, file_of(image.manifest().tree, index), fd.get(), progress, cancel);
    if (!done) return with_count(std::move(done).error(), changed);
    if (*done) ++changed;
  }
  return changed;
}

}  // namespace ckpt::restore
