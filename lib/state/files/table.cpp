#include "lib/state/files/table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/state/files/extended_attributes.h"
#include "lib/state/files/file_state.h"
#include "lib/state/files/plain_devices.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/files/write_hint.h"
#include "lib/state/inventory.h"
#include "lib/state/namespaces/further.h"

namespace ckpt::capture {

namespace {

constexpr std::string_view kDeleted = " (deleted)";

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() > tail.size() && text.substr(text.size() - tail.size()) == tail;
}

}  // namespace

namespace {

/// Another name of a file, in the folder where the deleted one was; empty: there is none.
std::string name_beside(const std::string& path, const struct stat& st) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const UniqueFd handle(state::open_in_tree(folder.c_str(), O_PATH | O_DIRECTORY));
  if (!handle) return "";
  std::error_code ec;
  std::filesystem::directory_iterator it(fmt::format("/proc/self/fd/{}", handle.get()), ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    struct stat other{};
    if (::lstat(it->path().c_str(), &other) == 0 && other.st_ino == st.st_ino && other.st_dev == st.st_dev)
      return folder / it->path().filename();
  }
  return "";
}

}  // namespace

int FileTable::find(const std::string& path, uint64_t inode) const {
  auto known = by_path_.find({state::looked_into(), path, inode});
  return known != by_path_.end() ? known->second : -1;
}

namespace {

/// Where the kernel itself makes files and folders: one that is gone does not come back.
bool is_on_kernels_own(const std::string& access) {
  struct statfs fs{};
  if (::statfs(access.c_str(), &fs) != 0) return false;
  constexpr std::array<unsigned long, 8> kOwn = {PROC_SUPER_MAGIC,    SYSFS_MAGIC,   CGROUP_SUPER_MAGIC,
                                                 CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, TRACEFS_MAGIC,
                                                 SECURITYFS_MAGIC,    BPF_FS_MAGIC};
  return std::find(kOwn.begin(), kOwn.end(), static_cast<unsigned long>(fs.f_type)) != kOwn.end();
}

}  // namespace

namespace {

/// None of one that a name is left of: that has them.
Result<std::vector<store::ExtendedAttribute>> attributes_of_deleted(const std::string& path, const std::string& access,
                                                                    const std::string& other_name) {
  if (!other_name.empty()) return std::vector<store::ExtendedAttribute>();
  auto found = state::read_extended_attributes(access);
  if (found || found.error().code != Code::kUnsupported) return found;
  return fail(Code::kMismatch, path, "was deleted while in use, and " + found.error().message);
}

}  // namespace

int FileTable::append(const std::string& path, const struct stat& st) {
  const int index = static_cast<int>(out_.image.files.size());
  by_path_.emplace(std::make_tuple(state::looked_into(), path, static_cast<uint64_t>(st.st_ino)), index);
  store::FileIdentity& file = out_.image.files.emplace_back();
  out_.ghosts.emplace_back();
  file.path = path;
  file.device = st.st_dev, file.inode = st.st_ino;
  file.size = static_cast<uint64_t>(st.st_size);
  file.mtime_ns = restore::mtime_ns(st);
  file.mode = st.st_mode;
  file.uid = st.st_uid, file.gid = st.st_gid;
  file.mounts = state::looked_into();
  return index;
}

/// It is made only once its processes are there, and what is opened before that would be of another one.
int FileTable::inner_proc_of(const struct stat& st) const {
  for (const store::FurtherNamespace& further : out_.image.namespaces.further) {
    for (const store::MountedFilesystem& filesystem : further.mounts.filesystems) {
      if (filesystem.pid_namespace >= 0 && filesystem.device == st.st_dev) return filesystem.pid_namespace;
    }
  }
  return -1;
}

Result<int> FileTable::add(const std::string& path, const struct stat& st, const std::string& access) {
  if (inner_proc_of(st) >= 0)
    return fail(Code::kMismatch, path, "is of the /proc of a further pid namespace, which is not supported");
  Result<int> here = add_here(path, st, access);
  if (here || here.error().code != Code::kMismatch || state::looked_into() < 0) return here;
  const state::InMounts first(-1);  // it was opened before there was another mount namespace
  Result<int> there = add_here(path, st, access);
  return there ? there : here;
}

Result<int> FileTable::add_here(const std::string& path, const struct stat& st, const std::string& access) {
  if (int known = find(path, st.st_ino); known >= 0) return known;
  struct stat named{};
  const bool there = state::stat_in_tree(path, named, !S_ISLNK(st.st_mode));
  if (there && named.st_ino == st.st_ino && named.st_dev == st.st_dev) return append(path, st);
  if (state::is_plain_device(st.st_mode, st.st_rdev)) {
    if (there && S_ISCHR(named.st_mode) && named.st_rdev == st.st_rdev) return append(path, named);
    const std::string name = state::name_of_plain_device(st.st_rdev);
    if (state::is_own_plain_device(name, named)) return append(name, named);
  }
  if (ends_with(path, kDeleted)) return add_deleted(path, st, access);
  return fail(Code::kMismatch, path,
              there ? "its name now leads to another file" : "its name cannot be reached from here");
}

Result<int> FileTable::add_deleted(const std::string& path, const struct stat& st, const std::string& access) {
  const bool folder = S_ISDIR(st.st_mode);
  if (!folder && !S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
    return fail(Code::kMismatch, path, "was deleted while in use, and is no regular file");
  if (is_on_kernels_own(access)) return fail(Code::kMismatch, path, "is gone, and nobody but the kernel can make it");
  std::string other_name = folder || st.st_nlink == 0 ? "" : name_beside(path, st);
  if (!folder && st.st_nlink != 0 && other_name.empty()) {
    return fail(Code::kMismatch, path,
                "this name of it was deleted while in use; another is left, in an unknown folder");
  }
  auto [known, is_new] = ghosts_.emplace(st.st_dev, st.st_ino);
  const uint64_t size = static_cast<uint64_t>(st.st_blocks) * 512;  // without its holes
  CKPT_TRY_ASSIGN(std::vector<store::ExtendedAttribute> attributes, attributes_of_deleted(path, access, other_name));
  if (is_new && S_ISREG(st.st_mode) && other_name.empty() && size > ghost_limit_) {
    ghosts_.erase(known);
    return fail(Code::kMismatch, path,
                fmt::format("was deleted while in use, and its {} are above --ghost-limit", human_bytes(size)));
  }
  const int index = append(path, st);
  store::FileIdentity& file = out_.image.files[static_cast<size_t>(index)];
  file.path = path.substr(0, path.size() - kDeleted.size());
  file.deleted = true;
  file.other_name = other_name;
  file.attributes = std::move(attributes);
  if (!other_name.empty()) return index;
  if (!is_new) return index;  // the first has the bytes
  if (!S_ISREG(st.st_mode)) return index;
  // A description of our own: the target's offset stays where it is, and a file open for writing can be read.
  CKPT_TRY_ASSIGN(out_.ghosts[static_cast<size_t>(index)].fd, io::open_file(access, O_RDONLY | O_NOATIME));
  file.write_hint = state::write_hint_of(out_.ghosts[static_cast<size_t>(index)].fd.get());
  return index;
}

}  // namespace ckpt::capture
