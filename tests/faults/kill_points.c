// Preloaded into agents and their trainers by flash_kills.py: ends them with SIGKILL at a named point. The file
// KILL_POINTS is an array of slots, one for each process, which say where, and at which visit. Points: "send:T",
// "sent:T", "received:T", T being the type of a message of man/ckpt-agent.7; functions of libc, before they are called;
// "rename:STEM", STEM being what the new name begins with, without digits; "verify", where a checkpoint's metadata are
// opened for reading; and what the process itself reaches.
// A slow disk: with SLOW_STORAGE_US each write of a page to a file and each fsync takes so long; with
// SLOW_STORAGE_UNTIL it takes until there is a file of that name. A folder that cannot be seen: as long as there is a
// file of the name HIDDEN_WHILE, attempts cannot be listed (EIO), and their ranks-0 is said not to be there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

struct Slot {
  char point[48];
  atomic_int visits;  // until it is hit; 0: never
  atomic_int group;   // 1: all of the process's group goes with it
  atomic_int hit;
  atomic_int unused;
};

static struct Slot *slots, *own;
static useconds_t slow_us;
static const char *slow_until, *hidden_while;

void kill_points_as(int number) { own = slots == NULL ? NULL : slots + number; }

void kill_points_reach(const char* point) {
  struct Slot* slot = own;
  if (slot == NULL || atomic_load(&slot->visits) <= 0 || strcmp(slot->point, point) != 0) return;
  if (atomic_fetch_sub(&slot->visits, 1) != 1) return;
  atomic_store(&slot->hit, 1);
  kill(atomic_load(&slot->group) ? 0 : getpid(), SIGKILL);
}

__attribute__((constructor)) static void set_up(void) {
  const char *file = getenv("KILL_POINTS"), *number = getenv("KILL_POINTS_SLOT"), *slow = getenv("SLOW_STORAGE_US");
  if (slow != NULL) slow_us = (useconds_t)atoi(slow);
  slow_until = getenv("SLOW_STORAGE_UNTIL");
  hidden_while = getenv("HIDDEN_WHILE");
  if (file == NULL) return;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
  if (fd < 0) _exit(99);
  void* shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (shared == MAP_FAILED) _exit(99);
  slots = shared;
  if (number != NULL) kill_points_as(atoi(number));
}

#define REAL(name)                                              \
  static __typeof__(&name) real;                                \
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name)

static void reach_message(const char* what, const struct msghdr* message) {
  unsigned magic = 0;
  unsigned short type = 0;
  if (message->msg_iovlen == 0 || message->msg_iov[0].iov_len < 8) return;
  memcpy(&magic, message->msg_iov[0].iov_base, sizeof magic);
  memcpy(&type, (const char*)message->msg_iov[0].iov_base + 6, sizeof type);
  if (magic != 0x4c464b43) return;
  char point[48];
  snprintf(point, sizeof point, "%s:%u", what, type);
  kill_points_reach(point);
}

ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  REAL(sendmsg);
  reach_message("send", message);
  const ssize_t done = real(fd, message, flags);
  if (done > 0) reach_message("sent", message);
  return done;
}

ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
  REAL(recvmsg);
  const ssize_t done = real(fd, message, flags);
  if (done >= 8) reach_message("received", message);
  return done;
}

int rename(const char* from, const char* to) {
  REAL(rename);
  const char* name = strrchr(to, '/');
  name = name == NULL ? to : name + 1;
  char point[48];
  snprintf(point, sizeof point, "rename:%.*s", (int)strcspn(name, "0123456789"), name);
  kill_points_reach("rename");
  kill_points_reach(point);
  return real(from, to);
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  void* mode = va_arg(list, void*);  // passed on as it lies in its register where it was not given
  va_end(list);
  const char* name = strrchr(path, '/');
  if ((flags & O_ACCMODE) == O_RDONLY && name != NULL && strcmp(name, "/.metadata") == 0) kill_points_reach("verify");
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static int is_hidden(const char* path, int error) {
  if (hidden_while == NULL || strstr(path, "/.ckpt-joint-") == NULL) return 0;
  if (syscall(SYS_faccessat, AT_FDCWD, hidden_while, F_OK) != 0) return 0;
  errno = error;
  return 1;
}

static int is_of_leader(const char* path) {
  const char* name = strrchr(path, '/');
  return name != NULL && strcmp(name, "/ranks-0") == 0;
}

int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  void* mode = va_arg(list, void*);
  va_end(list);
  if ((flags & O_DIRECTORY) != 0 && is_hidden(path, EIO)) return -1;
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}

int access(const char* path, int mode) {
  if (is_of_leader(path) && is_hidden(path, ENOENT)) return -1;
  return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

int lstat(const char* path, struct stat* st) {
  if (is_of_leader(path) && is_hidden(path, ENOENT)) return -1;
  return fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

static void take_time(int fd, size_t size) {
  struct stat st;
  if (size < 4096 || fstat(fd, &st) != 0 || st.st_nlink == 0) return;  // what the page cache takes, and memory
  if (slow_us > 0) usleep(slow_us);
  while (slow_until != NULL && access(slow_until, F_OK) != 0) usleep(10000);
}

#define POINT_AND(type, name, parameters, arguments, before) \
  type name parameters {                                     \
    REAL(name);                                              \
    kill_points_reach(#name);                                \
    before;                                                  \
    return real arguments;                                   \
  }
#define POINT(type, name, parameters, arguments) POINT_AND(type, name, parameters, arguments, (void)0)
#define SLOW_POINT(type, name, parameters, arguments, size) \
  POINT_AND(type, name, parameters, arguments, take_time(fd, size))

POINT(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size))
SLOW_POINT(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t offset), (fd, data, size, offset), size)
SLOW_POINT(ssize_t, copy_file_range,
           (int from, off64_t* at, int fd, off64_t* there, size_t size, unsigned flags),
           (from, at, fd, there, size, flags), size)
POINT(ssize_t, pread, (int fd, void* data, size_t size, off_t offset), (fd, data, size, offset))
SLOW_POINT(int, fsync, (int fd), (fd), SIZE_MAX)
POINT(int, mkdir, (const char* path, mode_t mode), (path, mode))
POINT(char*, mkdtemp, (char* path), (path))
POINT(int, unlinkat, (int folder, const char* path, int flags), (folder, path, flags))
