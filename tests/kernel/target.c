#include "target.h"

#include <linux/kcmp.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>

static uint64_t g_number;
static volatile int g_steps;
static volatile int64_t g_gap_ns;
static bool g_ready;
static char g_folder[4096];
static pid_t g_root;

// What the root has to end; a child's own children are its own affair.
enum { kMaxChildren = 512 };
static pid_t g_children[kMaxChildren];
static int g_child_count;

static const int kPollMs = 2;
static const int64_t kGapNs = 20 * 1000 * 1000;

static void write_file(const char* name, const char* text) {
  char staged[64];
  snprintf(staged, sizeof staged, ".%s", name);
  int fd = open(staged, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0 || rename(staged, name) != 0) {
    dprintf(2, "cannot write %s: %s\n", name, strerror(errno));
    _exit(3);
  }
}

// The first verdict stays: of several processes the one that found the cause speaks first.
static void write_result(const char* text) {
  char staged[5000], path[5000];
  snprintf(staged, sizeof staged, "%s/.result.%d", g_folder, get_tid());
  snprintf(path, sizeof path, "%s/result", g_folder);
  int fd = open(staged, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  if (fd >= 0) close(fd);
  if (!written || (link(staged, path) != 0 && errno != EEXIST)) {
    dprintf(2, "cannot write the result: %s\n", strerror(errno));
    _exit(3);
  }
  unlink(staged);
}

static void end_children(void) {
  if (getpid() != g_root) return;
  for (int i = 0; i < g_child_count; ++i) kill(g_children[i], SIGKILL);
  for (int i = 0; i < g_child_count; ++i) {
    kill(g_children[i], SIGCONT);
    waitpid(g_children[i], NULL, __WALL);
  }
  g_child_count = 0;
}

void target_init(int argc, char** argv) {
  if (argc < 2 || chdir(argv[1]) != 0) {
    dprintf(2, "usage: %s WORK-FOLDER [ARGUMENT...]\n", argv[0]);
    _exit(2);
  }
  if (getcwd(g_folder, sizeof g_folder) == NULL) _exit(3);
  g_root = getpid();
  if (getrandom(&g_number, sizeof g_number, 0) != sizeof g_number) _exit(3);
}

void target_ready(void) {
  char text[64];
  snprintf(text, sizeof text, "%d %016llx\n", getpid(), (unsigned long long)g_number);
  g_ready = true;
  write_file("ready", text);
}

static int expected_steps(void) {
  char text[16] = "";
  int fd = open("check", O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, text, sizeof text - 1) < 1) target_fail("cannot read the check file: %s", strerror(errno));
  close(fd);
  return atoi(text);
}

void target_wait(void (*step)(int number)) {
  int64_t last = now_ns();
  for (;;) {
    if (access("step", F_OK) == 0) {
      int number = g_steps + 1;
      if (step != NULL) step(number);
      g_steps = number;
      unlink("step");
    }
    if (access("check", F_OK) == 0) break;
    sleep_ms(kPollMs);
    int64_t now = now_ns();
    if (now - last > kGapNs) g_gap_ns += now - last;
    last = now;
  }
  int expected = expected_steps();
  if (expected != g_steps)
    target_fail("this state has seen %d steps, not %d: it is of another instant", g_steps, expected);
}

int target_steps(void) { return g_steps; }
int64_t target_gap_ns(void) { return g_gap_ns; }

void target_pass(void) {
  char text[64];
  snprintf(text, sizeof text, "pass %016llx\n", (unsigned long long)g_number);
  end_children();
  write_result(text);
  _exit(0);
}

void target_fail(const char* format, ...) {
  char text[1024] = "fail: ";
  size_t length = 6;
  if (g_root != 0 && getpid() != g_root) length += (size_t)sprintf(text + length, "child %d: ", getpid());
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + length, sizeof text - length, format, arguments);
  va_end(arguments);
  dprintf(2, "%s\n", text);
  write_result(text);
  end_children();
  _exit(1);
}

void target_skip(const char* format, ...) {
  char text[1024] = "skip: ";
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + 6, sizeof text - 6, format, arguments);
  va_end(arguments);
  if (g_ready) target_fail("skipped after ready: %s", text);
  end_children();
  write_result(text);
  _exit(77);
}

static const char* path_of(char* path, size_t size, const char* name, int number) {
  snprintf(path, size, "%s/%s.%d", g_folder, name, number);
  return path;
}

// Whoever waits for the file goes on at once: nothing may be open at that moment.
static void make_file(const char* name, int number) {
  char path[5000];
  if (mknod(path_of(path, sizeof path, name, number), S_IFREG | 0644, 0) != 0 && errno != EEXIST)
    target_fail("%s: %s", path, strerror(errno));
}

static bool take_file(const char* name, int number) {
  char path[5000];
  return unlink(path_of(path, sizeof path, name, number)) == 0;
}

static pid_t settle(pid_t child) {
  if (child < 0) target_fail("no child: %s", strerror(errno));
  if (getpid() == g_root) {
    if (g_child_count == kMaxChildren) target_fail("too many children");
    g_children[g_child_count++] = child;
  }
  for (int i = 0; i < 20000; ++i) {
    siginfo_t info;
    info.si_pid = 0;
    if (take_file("child", child)) return child;
    if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT | WNOHANG | __WALL) == 0 && info.si_pid == child)
      return child;
    sleep_ms(1);
  }
  target_fail("child %d is never ready", child);
}

pid_t start_child(int (*body)(void*), void* argument) {
  pid_t child = fork();
  if (child == 0) _exit(body(argument));
  return settle(child);
}

pid_t start_clone(int flags, int (*body)(void*), void* argument) {
  enum { kStack = 256 * 1024 };
  char* stack = map_pages(kStack);
  return settle(clone(body, stack + kStack, flags, argument));
}

void child_ready(void) { make_file("child", getpid()); }

void await_release(int phase) {
  char path[5000];
  path_of(path, sizeof path, "go", phase);
  while (access(path, F_OK) != 0) sleep_ms(kPollMs);
}

void child_wait(int phase) {
  child_ready();
  await_release(phase);
}

void release(int phase) { make_file("go", phase); }

static int end_of(pid_t child) {
  int status = 0;
  pid_t got;
  while ((got = waitpid(child, &status, __WALL)) == -1 && errno == EINTR) {
  }
  if (got != child) target_fail("waiting for child %d: %s", child, strerror(errno));
  for (int i = 0; i < g_child_count; ++i)
    if (g_children[i] == child) g_children[i] = g_children[--g_child_count];
  return status;
}

void expect_exit(pid_t child, int wanted) {
  int status = end_of(child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted)
    target_fail("child %d ended with wait status %#x, not with exit %d", child, status, wanted);
}

void expect_signal(pid_t child, int number) {
  int status = end_of(child);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != number)
    target_fail("child %d ended with wait status %#x, not by signal %d", child, status, number);
}

void expect_childless(void) {
  siginfo_t info;
  info.si_pid = 0;
  if (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT | __WALL) == 0)
    target_fail("there is still a child (%d)", info.si_pid);
  if (errno != ECHILD) target_fail("waitid: %s", strerror(errno));
}

struct Family family_of(pid_t pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (got < 0) target_fail("%s: %s", path, strerror(errno));
  close(fd);
  text[got] = 0;
  struct Family family;
  const char* rest = strrchr(text, ')');
  if (rest == NULL || sscanf(rest, ") %c %d %d %d", &family.state, &family.parent, &family.group, &family.session) != 4)
    target_fail("%s: cannot be read", path);
  return family;
}

void wait_state(pid_t pid, char state) {
  for (int i = 0; i < 5000; ++i) {
    if (family_of(pid).state == state) return;
    sleep_ms(1);
  }
  target_fail("process %d is in state %c, never in %c", pid, family_of(pid).state, state);
}

void expect_same_file(int left, pid_t other, int right, bool wanted) {
  long order = syscall(SYS_kcmp, getpid(), other, KCMP_FILE, left, right);
  if (order < 0) target_fail("kcmp of %d with %d of process %d: %s", left, right, other, strerror(errno));
  if ((order == 0) != wanted)
    target_fail("descriptors %d and %d of process %d are %s open file", left, right, other, wanted ? "not one" : "one");
}

pthread_t start_thread(void* (*body)(void*), void* argument) {
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  errno = pthread_create(&thread, &attributes, body, argument);
  if (errno != 0) target_fail("pthread_create: %s", strerror(errno));
  pthread_attr_destroy(&attributes);
  return thread;
}

/// `argument`: the call's first one, or -1 for any.
static void wait_in_call(pid_t tid, long number, long argument) {
  char path[64], text[64];
  snprintf(path, sizeof path, "/proc/%d/syscall", tid);
  for (int i = 0; i < 5000; ++i) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) target_fail("%s: %s", path, strerror(errno));
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got > 0) {
      text[got] = 0;
      char* end = NULL;
      long current = strtol(text, &end, 10);
      bool right = argument == -1 || strtol(end, NULL, 16) == argument;
      if (end != text && right && (current == number || current == SYS_restart_syscall)) return;
    }
    sleep_ms(1);
  }
  target_fail("thread %d never blocked in system call %ld", tid, number);
}

void wait_blocked_in(pid_t tid, long number) { wait_in_call(tid, number, -1); }
void wait_reading(pid_t tid, int fd) { wait_in_call(tid, SYS_read, fd); }

pid_t get_tid(void) { return (pid_t)syscall(SYS_gettid); }

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void sleep_ms(int ms) {
  struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + (b + 1) * 0xD1B54A32D192ED03u;
  x ^= x >> 32;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 29;
  return x;
}

void fill_words(void* memory, size_t bytes, uint64_t seed) {
  uint64_t* word = memory;
  for (size_t i = 0; i < bytes / 8; ++i) word[i] = mix(seed, i);
}

long first_wrong(const void* memory, size_t bytes, uint64_t seed) {
  const uint64_t* word = memory;
  for (size_t i = 0; i < bytes / 8; ++i)
    if (word[i] != mix(seed, i)) return (long)i;
  return -1;
}

void* map_pages(size_t bytes) {
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) target_fail("mmap of %zu bytes: %s", bytes, strerror(errno));
  return memory;
}

bool proc_field(const char* file, const char* name, char* out, size_t size) {
  FILE* stream = fopen(file, "re");
  if (stream == NULL) target_fail("%s: %s", file, strerror(errno));
  char line[1024];
  bool found = false;
  size_t length = strlen(name);
  while (!found && fgets(line, sizeof line, stream) != NULL) {
    if (strncmp(line, name, length) != 0 || line[length] != ':') continue;
    char* value = line + length + 1;
    value += strspn(value, " \t");
    value[strcspn(value, "\n")] = 0;
    snprintf(out, size, "%s", value);
    found = true;
  }
  fclose(stream);
  return found;
}

void mapping_flags(const void* address, char* permissions, char* flags, size_t size) {
  FILE* stream = fopen("/proc/self/smaps", "re");
  if (stream == NULL) target_fail("smaps: %s", strerror(errno));
  char line[1024];
  bool inside = false;
  while (fgets(line, sizeof line, stream) != NULL) {
    unsigned long start, end;
    char bits[5];
    if (sscanf(line, "%lx-%lx %4s", &start, &end, bits) == 3) {
      inside = (unsigned long)address >= start && (unsigned long)address < end;
      if (inside) memcpy(permissions, bits, sizeof bits);
    } else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
      line[strcspn(line, "\n")] = 0;
      snprintf(flags, size, "%s ", line + 8);
      fclose(stream);
      return;
    }
  }
  target_fail("no mapping holds %p", address);
}

void target_shm_name(char* out, size_t size, const char* what) {
  snprintf(out, size, "%s-%s", g_folder, what);
  for (char* slash = out; (slash = strchr(slash, '/')) != NULL;) *slash = '-';
  out[0] = '/';
}
