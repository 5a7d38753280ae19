#include "lib/state/files/without_links.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lib/state/files/tree_root.h"

namespace ckpt::restore {

namespace {

constexpr int kFolder = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

/// O_NOFOLLOW and O_PATH together open the link itself, which only counts as wanted when the caller says both.
int open_last(int dir, const char* name, int flags) {
  const int fd = ::openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -errno;
  struct stat st{};
  if ((flags & O_NOFOLLOW) != 0 || ::fstat(fd, &st) != 0 || !S_ISLNK(st.st_mode)) return fd;
  ::close(fd);
  return -ELOOP;
}

}  // namespace

int walk_without_links(const char* path, int flags) {
  int dir = state::open_tree_root();
  if (dir < 0) return dir;
  std::array<char, 256> name{};
  for (const char* at = path;;) {
    while (*at == '/') ++at;
    const size_t length = std::strcspn(at, "/");
    const char* rest = at + length + std::strspn(at + length, "/");
    if (length >= name.size()) return ::close(dir), -ENAMETOOLONG;
    std::memcpy(name.data(), length == 0 ? "." : at, length == 0 ? 2 : length);
    if (length != 0) name[length] = 0;
    const int next = *rest == 0 ? open_last(dir, name.data(), flags) : ::openat(dir, name.data(), kFolder);
    int error = next < 0 && *rest != 0 ? errno : 0;
    struct stat st{};
    // O_DIRECTORY says ENOTDIR of a link.
    if (error == ENOTDIR && ::fstatat(dir, name.data(), &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
      error = ELOOP;
    ::close(dir);
    if (*rest == 0) return next;
    if (next < 0) return -error;
    dir = next, at = rest;
  }
}

int open_without_links(const char* path, int flags) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_IN_ROOT;
  const int root = state::open_tree_root();
  if (root < 0) return root;
  const long fd = ::syscall(SYS_openat2, root, path, &how, sizeof how);
  const int error = errno;
  ::close(root);
  if (fd >= 0) return static_cast<int>(fd);
  return error == ENOSYS || error == EPERM ? walk_without_links(path, flags) : -error;
}

}  // namespace ckpt::restore
