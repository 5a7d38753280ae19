#include "lib/state/files/tree_root.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lib/base/io.h"
#include "lib/state/run_as.h"

namespace ckpt::state {

namespace {

// Never closed: the processes that ckpt forks look names up, too.
int g_root = -1, g_namespace = -1, g_mountinfo = -1;
thread_local const MountNamespace* t_other = nullptr;

int root_fd() { return t_other != nullptr ? t_other->root.get() : g_root; }
int namespace_fd_now() { return t_other != nullptr ? t_other->handle.get() : g_namespace; }

constexpr int kFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;

}  // namespace

void set_tree_root(UniqueFd root, UniqueFd namespace_fd) {
  g_root = root.release();
  g_namespace = namespace_fd.release();
  if (g_mountinfo >= 0) ::close(std::exchange(g_mountinfo, -1));
}

bool has_tree_root() { return g_root >= 0; }
int tree_mount_namespace() { return namespace_fd_now(); }

UnderRoot::UnderRoot(const MountNamespace* other) : before_(t_other) { t_other = other; }
UnderRoot::~UnderRoot() { t_other = before_; }

Result<MountNamespace> open_mount_namespace(const std::string& path) {
  MountNamespace out;
  CKPT_TRY_ASSIGN(out.handle, io::open_file(path, O_RDONLY));
  // A helper goes there, since nobody with threads may, and nobody comes back as he was.
  CKPT_TRY_ASSIGN(restore::CallResult opened, restore::run_as({}, [&] {
                    if (::setns(out.handle.get(), CLONE_NEWNS) != 0) return -errno;
                    const int root = ::open("/", kFolder);
                    return root < 0 ? -errno : root;
                  }));
  if (opened.value < 0) return sys_error(-opened.value, path, "cannot be entered");
  out.root = UniqueFd(opened.value);
  return out;
}

Result<std::string> read_tree_mountinfo() {
  constexpr uint64_t kLimit = 64 << 20;
  const int namespace_fd = namespace_fd_now();
  if (namespace_fd < 0) return io::read_file("/proc/self/mountinfo", kLimit);
  // Open it goes on being of its namespace: no helper is needed a second time.
  if (t_other == nullptr && g_mountinfo >= 0) {
    if (::lseek(g_mountinfo, 0, SEEK_SET) != 0) return sys_error("mountinfo", "cannot be read again");
    return io::read_all(g_mountinfo, kLimit, "mountinfo");
  }
  CKPT_TRY_ASSIGN(restore::CallResult opened, restore::run_as({}, [&] {
                    // Through ckpt's own /proc: there may be none in the namespace.
                    const int self = ::open("/proc/self", O_PATH | O_CLOEXEC);
                    if (self < 0 || ::setns(namespace_fd, CLONE_NEWNS) != 0) return -errno;
                    const int file = ::openat(self, "mountinfo", O_RDONLY | O_CLOEXEC);
                    const int error = errno;
                    ::close(self);
                    return file < 0 ? -error : file;
                  }));
  if (opened.value < 0) return sys_error(-opened.value, "mountinfo", "cannot be read in the process's mount namespace");
  UniqueFd file(opened.value);
  auto text = io::read_all(file.get(), kLimit, "mountinfo");
  if (t_other == nullptr) g_mountinfo = file.release();
  return text;
}

int open_tree_root() {
  const int root = root_fd();
  const int fd = root < 0 ? ::open("/", kFolder) : ::openat(root, ".", kFolder);
  return fd < 0 ? -errno : fd;
}

int open_in_tree(const char* path, int flags) {
  const int root = root_fd();
  if (root < 0) {
    const int fd = ::open(path, flags | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
  }
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, root, path, &how, sizeof how);
  return fd < 0 ? -errno : static_cast<int>(fd);
}

bool stat_in_tree(const std::string& path, struct stat& st, bool follow) {
  if (root_fd() < 0) return (follow ? ::stat(path.c_str(), &st) : ::lstat(path.c_str(), &st)) == 0;
  const UniqueFd fd(open_in_tree(path.c_str(), O_PATH | (follow ? 0 : O_NOFOLLOW)));
  return fd && ::fstat(fd.get(), &st) == 0;
}

bool enter_tree_root() {
  const int root = root_fd();
  if (root < 0) return true;
  return ::fchdir(root) == 0 && ::chroot(".") == 0;
}

}  // namespace ckpt::state
