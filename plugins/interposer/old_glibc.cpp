// What is called in glibc 2.29 and later and has no older form there (old_glibc.S is about the rest): for this library
// alone.
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

extern "C" {

// 2.33; before it there were macros.
int stat(const char* path, struct stat* out) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, out, 0));
}
int lstat(const char* path, struct stat* out) noexcept {
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW));
}
int fstat(int fd, struct stat* out) noexcept { return static_cast<int>(::syscall(SYS_fstat, fd, out)); }

// 2.32, read by the static libstdc++: 0 is always true.
char __libc_single_threaded = 0;

// 2.36, of std::random_device, which nothing here uses.
uint32_t arc4random() {
  uint32_t out = 0;
  if (::getrandom(&out, sizeof out, 0) != sizeof out) std::abort();
  return out;
}

// 2.35, of the unwinder: no frame of this library can be unwound through, an exception ends the program.
int _dl_find_object(void*, void*) { return -1; }

}  // extern "C"
