// Preloaded into ckpt: the FAULT_NTH-th call of FAULT_FUNCTION, counted over all of its processes and threads, fails
// with FAULT_ERRNO; 0 kills the process there, and the one that the user started. The file FAULT_COUNTER (two 64-bit
// numbers) counts the calls and says whether one failed. FAULT_NTH=0 only counts.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct Counter {
  atomic_long calls, failed;
} nowhere, *counter = &nowhere;
static const char* function;
static long nth;
static int error_number;
static pid_t front;

__attribute__((constructor)) static void set_up(void) {
  const char* file = getenv("FAULT_COUNTER");
  if (file == NULL) return;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
  if (fd < 0) _exit(99);
  void* shared = (void*)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (shared == MAP_FAILED) _exit(99);
  counter = shared;
  front = getpid();  // those that it forks have it from there
  nth = atol(getenv("FAULT_NTH"));
  error_number = atoi(getenv("FAULT_ERRNO"));
  function = getenv("FAULT_FUNCTION");
}

static int fails(const char* name) {
  if (function == NULL || strcmp(name, function) != 0) return 0;
  if (atomic_fetch_add(&counter->calls, 1) + 1 != nth) return 0;
  atomic_store(&counter->failed, 1);
  if (error_number == 0) {
    kill(front, SIGKILL);
    kill(getpid(), SIGKILL);
  }
  errno = error_number;
  return 1;
}

// A function of libc that returns `failure` where it is made to fail.
#define FAILING(type, name, parameters, arguments, failure)   \
  type name parameters {                                      \
    static type(*real) parameters;                            \
    if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, #name); \
    return fails(#name) ? (failure) : real arguments;         \
  }

FAILING(ssize_t, write, (int fd, const void* data, size_t size), (fd, data, size), -1)
FAILING(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t offset), (fd, data, size, offset), -1)
FAILING(ssize_t, writev, (int fd, const struct iovec* parts, int count), (fd, parts, count), -1)
FAILING(ssize_t, copy_file_range, (int from, off64_t* at, int to, off64_t* there, size_t size, unsigned flags),
        (from, at, to, there, size, flags), -1)
FAILING(ssize_t, pread, (int fd, void* data, size_t size, off_t offset), (fd, data, size, offset), -1)
FAILING(ssize_t, read, (int fd, void* data, size_t size), (fd, data, size), -1)
FAILING(int, fsync, (int fd), (fd), -1)
FAILING(int, ftruncate, (int fd, off_t size), (fd, size), -1)
FAILING(int, fallocate, (int fd, int mode, off_t offset, off_t size), (fd, mode, offset, size), -1)
FAILING(int, rename, (const char* from, const char* to), (from, to), -1)
FAILING(int, mkdir, (const char* path, mode_t mode), (path, mode), -1)
FAILING(void*, mmap, (void* at, size_t size, int prot, int flags, int fd, off_t offset),
        (at, size, prot, flags, fd, offset), MAP_FAILED)
FAILING(pid_t, fork, (void), (), -1)
FAILING(int, pthread_create, (pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument),
        (thread, attributes, run, argument), error_number)
FAILING(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1)
FAILING(int, pipe2, (int ends[2], int flags), (ends, flags), -1)
FAILING(int, memfd_create, (const char* name, unsigned flags), (name, flags), -1)
FAILING(ssize_t, process_vm_readv,
        (pid_t pid, const struct iovec* local, unsigned long n, const struct iovec* remote, unsigned long m,
         unsigned long flags),
        (pid, local, n, remote, m, flags), -1)
FAILING(ssize_t, process_vm_writev,
        (pid_t pid, const struct iovec* local, unsigned long n, const struct iovec* remote, unsigned long m,
         unsigned long flags),
        (pid, local, n, remote, m, flags), -1)

// Those with optional arguments: what was not given is passed on as it lies in its register.
#define OPTIONAL(last)  \
  va_list list;         \
  va_start(list, last); \
  void* more = va_arg(list, void*); \
  va_end(list)

int open(const char* path, int flags, ...) {
  OPTIONAL(flags);
  if (fails("open")) return -1;
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, more);
}
int openat(int folder, const char* path, int flags, ...) {
  OPTIONAL(flags);
  if (fails("openat")) return -1;
  return (int)syscall(SYS_openat, folder, path, flags, more);
}
int ioctl(int fd, unsigned long request, ...) {
  OPTIONAL(request);
  if (fails("ioctl")) return -1;
  return (int)syscall(SYS_ioctl, fd, request, more);
}
long ptrace(enum __ptrace_request request, ...) {
  va_list list;
  va_start(list, request);
  const long pid = va_arg(list, long);
  void* address = va_arg(list, void*);
  void* data = va_arg(list, void*);
  va_end(list);
  static long (*real)(enum __ptrace_request, ...);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "ptrace");
  return fails("ptrace") ? -1 : real(request, (pid_t)pid, address, data);
}
// clone3, kcmp, openat2 and the others that libc has no function for.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  const long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long), d = va_arg(list, long),
             e = va_arg(list, long), f = va_arg(list, long);
  va_end(list);
  static long (*real)(long, ...);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "syscall");
  return fails("syscall") ? -1 : real(number, a, b, c, d, e, f);
}
