// What the machine allows: each line of the table is compared with one of these, made in the same run.
//   memory_floor fill MIB THREADS              fresh anonymous pages, each written once from hot memory
//   memory_floor tmpfs|storage MIB THREADS DIR memory to new files of DIR, one a thread; storage: and fsync
//   memory_floor readv PID ADDRESS BYTES THREADS        process_vm_readv into one hot buffer a thread
//   memory_floor outside PID ADDRESS BYTES THREADS DIR  the same, and from there to new files of DIR, one a thread
//   memory_floor delta PID ADDRESS BYTES THREADS        stop PID, scan for written pages, copy them into faulted-in
//   memory, start it memory_floor run FILE COMMAND...           runs it; FILE: begin_ns, wall_ns, cpu_us, peak KiB (it
//   or a child of it), exit status
// Prints nanoseconds, by the clock and of processors; delta: stop, scan, copy, start, bytes.
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "bench.h"

enum { kMaxThreads = 64, kRanges = 512, kMaxTasks = 4096 };
static size_t g_bytes;
static int g_threads, g_sync;
static pid_t g_pid;
static char *g_from, *g_to;
static const char* g_folder;
static struct page_region* g_regions;
static size_t g_count;

static void part(intptr_t index, size_t* start, size_t* end) {
  size_t blocks = g_bytes / kMiB;
  *start = blocks * (size_t)index / (size_t)g_threads * kMiB;
  *end = blocks * (size_t)(index + 1) / (size_t)g_threads * kMiB;
}

static void* fill(void* index) {
  size_t start, end;
  part((intptr_t)index, &start, &end);
  char* hot = malloc(kMiB);
  memset(hot, 1, kMiB);
  for (size_t at = start; at < end; at += kMiB) memcpy(g_to + at, hot, kMiB);
  free(hot);
  return NULL;
}

static void* write_file(void* index) {
  size_t start, end;
  part((intptr_t)index, &start, &end);
  char path[4096];
  snprintf(path, sizeof path, "%s/floor-%d", g_folder, (int)(intptr_t)index);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0) fail(path);
  for (size_t at = start; at < end; at += kMiB) {
    if (write(fd, g_from + at, kMiB) != kMiB) fail(path);
  }
  if (g_sync && fsync(fd) != 0) fail("fsync");
  close(fd);
  return NULL;
}

static void remove_files(void) {
  char path[4096];
  for (int i = 0; i < g_threads; ++i) {
    snprintf(path, sizeof path, "%s/floor-%d", g_folder, i);
    unlink(path);
  }
}

// With a folder: and from there to a file of it.
static void* read_remote(void* index) {
  size_t start, end;
  char path[4096];
  int fd = -1;
  if (g_folder != NULL) {
    snprintf(path, sizeof path, "%s/floor-%d", g_folder, (int)(intptr_t)index);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) fail(path);
  }
  char* buffer = malloc(kMiB);
  memset(buffer, 1, kMiB);
  part((intptr_t)index, &start, &end);
  for (size_t at = start; at < end; at += kMiB) {
    struct iovec local = {buffer, kMiB}, remote = {g_from + at, kMiB};
    if (process_vm_readv(g_pid, &local, 1, &remote, 1, 0) != kMiB) fail("process_vm_readv");
    if (fd >= 0 && write(fd, buffer, kMiB) != kMiB) fail(path);
  }
  if (fd >= 0) close(fd);
  free(buffer);
  return NULL;
}

// This thread's share of g_regions into its share of g_to.
static void* read_regions(void* index) {
  const size_t first = g_count * (size_t)(intptr_t)index / (size_t)g_threads;
  const size_t last = g_count * ((size_t)(intptr_t)index + 1) / (size_t)g_threads;
  size_t to = 0;
  for (size_t i = 0; i < first; ++i) to += g_regions[i].end - g_regions[i].start;
  for (size_t at = first; at < last;) {
    struct iovec remote[kRanges];
    size_t n = 0, bytes = 0;
    for (; at < last && n < kRanges; ++at, ++n) {
      remote[n].iov_base = (void*)(uintptr_t)g_regions[at].start;
      remote[n].iov_len = g_regions[at].end - g_regions[at].start;
      bytes += remote[n].iov_len;
    }
    struct iovec local = {g_to + to, bytes};
    if (process_vm_readv(g_pid, &local, 1, remote, n, 0) != (ssize_t)bytes) fail("process_vm_readv");
    to += bytes;
  }
  return NULL;
}

static uint64_t run(void* (*body)(void*)) {
  pthread_t thread[kMaxThreads];
  uint64_t begin = now_ns();
  for (intptr_t i = 1; i < g_threads; ++i) pthread_create(&thread[i], NULL, body, (void*)i);
  body(NULL);
  for (int i = 1; i < g_threads; ++i) pthread_join(thread[i], NULL);
  return now_ns() - begin;
}

static uint64_t processor_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void print_run(void* (*body)(void*)) {
  const uint64_t processors = processor_ns(), took = run(body);
  printf("%lu %lu\n", took, processor_ns() - processors);
}

static size_t tasks_of(pid_t pid, pid_t* out) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR* folder = opendir(path);
  if (folder == NULL) fail(path);
  size_t count = 0;
  for (struct dirent* entry; (entry = readdir(folder)) != NULL && count < kMaxTasks;) {
    if (entry->d_name[0] != '.') out[count++] = atoi(entry->d_name);
  }
  closedir(folder);
  return count;
}

static void delta(void) {
  static pid_t task[kMaxTasks];
  const size_t room = g_bytes / kPage + 1;
  g_regions = (struct page_region*)(void*)map_bytes(room * sizeof *g_regions);
  memset(g_regions, 1, room * sizeof *g_regions);
  g_to = map_bytes(g_bytes);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/pagemap", g_pid);
  int pagemap = open(path, O_RDONLY);
  if (pagemap < 0) fail(path);
  // As much buffer as will be needed, faulted in while the target still runs.
  const uint64_t start = (uintptr_t)g_from, end = start + g_bytes;
  g_count = scan_pages(pagemap, start, end, kWritten, 0, g_regions, room);
  size_t dirty = 0;
  for (size_t i = 0; i < g_count; ++i) dirty += g_regions[i].end - g_regions[i].start;
  memset(g_to, 1, dirty);

  const uint64_t begin = now_ns();
  const size_t tasks = tasks_of(g_pid, task);
  for (size_t i = 0; i < tasks; ++i) {
    if (ptrace(PTRACE_SEIZE, task[i], 0, 0) != 0 || ptrace(PTRACE_INTERRUPT, task[i], 0, 0) != 0) fail("ptrace");
  }
  int status;
  for (size_t i = 0; i < tasks; ++i) waitpid(task[i], &status, __WALL);
  const uint64_t stopped = now_ns();
  g_count = scan_pages(pagemap, start, end, kWritten, 0, g_regions, room);
  const uint64_t scanned = now_ns();
  const int threads = g_threads;
  if (dirty < kMiB) g_threads = 1;  // starting threads would cost more
  run(read_regions);
  g_threads = threads;
  const uint64_t copied = now_ns();
  for (size_t i = 0; i < tasks; ++i) ptrace(PTRACE_DETACH, task[i], 0, 0);
  printf("%lu %lu %lu %lu %zu\n", stopped - begin, scanned - stopped, copied - scanned, now_ns() - copied, dirty);
}

// Not ckpt's own: the time that python takes to start a program would count.
static int run_command(const char* file, char** command) {
  pid_t child;
  const uint64_t begin = now_ns();
  if (posix_spawn(&child, command[0], NULL, NULL, command, environ) != 0) fail(command[0]);
  int status = 0;
  struct rusage usage;
  while (wait4(child, &status, 0, &usage) != child) continue;
  const uint64_t wall = now_ns() - begin;
  FILE* out = fopen(file, "w");
  if (out == NULL) fail(file);
  const long cpu_us =
      (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  fprintf(out, "%lu %lu %ld %ld %d\n", begin, wall, cpu_us, usage.ru_maxrss,
          WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  return fclose(out);
}

static int usage(void) {
  fputs("see the head of memory_floor.c\n", stderr);
  return 2;
}

int main(int argc, char** argv) {
  if (argc < 4) return usage();
  if (strcmp(argv[1], "run") == 0) return run_command(argv[2], argv + 3);
  const int remote = strcmp(argv[1], "readv") == 0 || strcmp(argv[1], "outside") == 0 || strcmp(argv[1], "delta") == 0;
  if (argc < (remote ? 6 : 4)) return usage();
  g_threads = atoi(argv[remote ? 5 : 3]);
  if (g_threads < 1 || g_threads > kMaxThreads) return usage();
  if (remote) {
    g_pid = atoi(argv[2]);
    g_from = (char*)strtoul(argv[3], NULL, 0);
    g_bytes = strtoul(argv[4], NULL, 0);
    if (argv[1][0] == 'd') return delta(), 0;
    if (argv[1][0] == 'o' && argc == 7) g_folder = argv[6];
    print_run(read_remote);
    if (g_folder != NULL) remove_files();
    return 0;
  }
  g_bytes = (size_t)atol(argv[2]) * kMiB;
  if (strcmp(argv[1], "fill") == 0) {
    g_to = map_bytes(g_bytes);
    print_run(fill);
    return 0;
  }
  if (argc != 5) return usage();
  g_sync = argv[1][0] == 's';
  g_folder = argv[4];
  g_from = map_bytes(g_bytes);
  uint64_t state = 88172645463325252u;
  for (size_t i = 0; i < g_bytes / 8; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    ((uint64_t*)(void*)g_from)[i] = state;
  }
  print_run(write_file);
  remove_files();
  return 0;
}
