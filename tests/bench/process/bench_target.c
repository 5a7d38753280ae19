// The process that is dumped: it measures itself, by a clock that ckpt does not know of.
//   bench_target CONTROL MIB CONTENT [THREADS MAPS FILES MIXED PROCESSES]     CONTENT: random, weights, zero, read
// FILES: descriptors of one file; MIXED: as many of files of their own, pipes and sockets; PROCESSES: it and its
// children. It holds MIB MiB (weights: bfloat16 normals; zero: written with zeros; read: only ever read) and what else
// is asked for, and talks through CONTROL, a file that it maps: the page `struct control`, then the end times of what
// its writer wrote. Its main thread wakes every 200 us and keeps the longest pause between two wakings; it carries out
// commands in between.
#include <pthread.h>
#include <stdatomic.h>
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "bench.h"

enum { kSlices = 1 << 17, kTickNs = 200000 };
enum command { kNone, kTouch, kFork, kProtect, kRewrite, kSum };

struct control {  // bench.py reads and writes it by offset: eight bytes each, in this order
  _Atomic uint64_t ready, pid, address, bytes;
  _Atomic uint64_t command, argument, result[4];
  _Atomic uint64_t ticks, last_ns, longest_ns, longest_end_ns;  // the bench sets longest_ns to 0
  _Atomic uint64_t writing, hot_bytes;                          // the writer goes round the first hot_bytes
  _Atomic uint64_t slices;                                      // of one MiB, written so far
};

static struct control* g_control;
static _Atomic uint64_t* g_slice_ends;
static char* g_memory;
static size_t g_bytes;
static const char* g_content;
static uint16_t g_normals[1 << 16];

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static double uniform(uint64_t seed) { return ((double)(mix(seed) >> 11) + 0.5) / 9007199254740992.0; }

// bfloat16 is the upper half of a float. A standard deviation of 0.02, as trained weights have.
static void make_normals(void) {
  for (uint64_t i = 0; i < 1 << 16; ++i) {
    float value = (float)(0.02 * sqrt(-2 * log(uniform(2 * i))) * cos(6.283185307179586 * uniform(2 * i + 1)));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    g_normals[i] = (uint16_t)(bits >> 16);
  }
}

static void* fill(void* half) {
  const size_t words = g_bytes / 8, first = half == NULL ? 0 : words / 2, last = half == NULL ? words / 2 : words;
  uint64_t* word = (uint64_t*)(void*)g_memory;
  for (size_t i = first; i < last; ++i) {
    const uint64_t r = mix(i);
    word[i] = g_content[0] == 'w' ? (uint64_t)g_normals[r & 0xffff] | (uint64_t)g_normals[r >> 16 & 0xffff] << 16 |
                                        (uint64_t)g_normals[r >> 32 & 0xffff] << 32 | (uint64_t)g_normals[r >> 48] << 48
                                  : r;
  }
  return NULL;
}

static void fill_memory(void) {
  g_memory = map_bytes(g_bytes);
  if (g_content[0] == 'z') memset(g_memory, 0, g_bytes);
  volatile char sink = 0;
  for (size_t at = 0; g_content[0] == 'r' && g_content[1] == 'e' && at < g_bytes; at += kPage) sink ^= g_memory[at];
  if (g_content[0] == 'w') make_normals();
  if (g_content[0] == 'w' || strcmp(g_content, "random") == 0) {
    pthread_t other;
    pthread_create(&other, NULL, fill, g_memory);
    fill(NULL);
    pthread_join(other, NULL);
  }
}

// One word in each of argument per mille of the pages, evenly spread: the dearest way to be dirty.
static void touch(uint64_t permille) {
  const size_t pages = g_bytes / kPage, wanted = pages * permille / 1000;
  for (size_t i = 0; i < wanted; ++i) ++*(uint64_t*)(void*)(g_memory + i * pages / wanted * kPage);
}

static void rewrite(void) {
  for (size_t at = 0; at < g_bytes; at += kPage) ++*(uint64_t*)(void*)(g_memory + at);
}

// The parent's time in fork; the child ends at once.
static uint64_t time_fork(void) {
  const uint64_t begin = now_ns();
  pid_t child = fork();
  if (child == 0) _exit(0);
  const uint64_t took = now_ns() - begin;
  waitpid(child, NULL, 0);
  return took;
}

// Registering and arming every page, and then a scan that finds nothing; zeros where the kernel cannot.
static void time_protect(void) {
  static struct page_region regions[1024];
  int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const uint64_t begin = now_ns(), start = (uintptr_t)g_memory;
  int tracker = track_writes(g_memory, g_bytes);
  if (tracker >= 0) {
    scan_pages(pagemap, start, start + g_bytes, 0, kArm, regions, 1024);
    const uint64_t armed = now_ns();
    scan_pages(pagemap, start, start + g_bytes, kWritten, 0, regions, 1024);
    g_control->result[0] = armed - begin;
    g_control->result[1] = now_ns() - armed;
    close(tracker);
  }
  close(pagemap);
}

static uint64_t sum(void) {
  uint64_t out = 0;
  for (size_t at = 0; at < g_bytes; at += kPage) out += *(uint64_t*)(void*)(g_memory + at);
  return out;
}

static void obey(enum command command) {
  for (int i = 0; i < 4; ++i) g_control->result[i] = 0;
  if (command == kTouch) touch(g_control->argument);
  if (command == kFork) g_control->result[0] = time_fork();
  if (command == kProtect) time_protect();
  if (command == kRewrite) rewrite();
  if (command == kSum) g_control->result[0] = sum();
  g_control->last_ns = now_ns();
  g_control->command = kNone;
}

// Reads and writes every word of the hot part, round and round.
static void* writer(void* unused) {
  for (uint64_t slice = 0;; ++slice) {
    while (!g_control->writing) usleep(500);
    const size_t hot = g_control->hot_bytes / kMiB;
    uint64_t* word = (uint64_t*)(void*)(g_memory + slice % hot * kMiB);
    for (size_t i = 0; i < kMiB / 8; ++i) ++word[i];
    const uint64_t done = g_control->slices;
    g_slice_ends[done % kSlices] = now_ns();
    g_control->slices = done + 1;
  }
  return unused;
}

static void* sleeper(void* unused) {
  for (;;) sleep(1000);
  return unused;
}

static void add_threads(int count) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 64 << 10);
  pthread_t thread;
  for (int i = 0; i < count; ++i) {
    if (pthread_create(&thread, &attr, sleeper, NULL) != 0) fail("pthread_create");
  }
}

// Every second page has another protection, so that each is a mapping of its own.
static void add_mappings(int count) {
  if (count == 0) return;
  char* memory = map_bytes((size_t)count * kPage);
  for (int i = 0; i < count; ++i) {
    memory[(size_t)i * kPage] = 1;
    if (i % 2 == 0 && mprotect(memory + (size_t)i * kPage, kPage, PROT_READ) != 0) fail("mprotect");
  }
}

static void add_files(int count, const char* path) {
  for (int i = 0; i < count; ++i) {
    if (open(path, O_RDONLY | O_CLOEXEC) < 0) fail(path);
  }
}

// Files beside the control file.
static void add_mixed(int count, const char* path) {
  for (int i = 0; i < count; i += 6) {
    char name[4096];
    int ends[2];
    for (int k = 0; k < 2; ++k) {
      snprintf(name, sizeof name, "%s-%d", path, i + k);
      if (open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600) < 0) fail(name);
    }
    if (pipe2(ends, O_CLOEXEC) != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      fail("descriptors");
  }
}

// Children with a MiB each, which end with their parent.
static void add_processes(int count) {
  for (int i = 1; i < count; ++i) {
    const pid_t child = fork();
    if (child < 0) fail("fork");
    if (child != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    memset(map_bytes(kMiB), 1, kMiB);
    for (;;) pause();
  }
}

static void map_control(const char* path) {
  const size_t size = kPage + kSlices * 8;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)size) != 0) fail(path);
  char* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) fail("mmap");
  close(fd);
  g_control = (struct control*)(void*)memory;
  g_slice_ends = (_Atomic uint64_t*)(void*)(memory + kPage);
}

int main(int argc, char** argv) {
  if (argc != 4 && argc != 9) return 2;
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  map_control(argv[1]);
  g_bytes = (size_t)atol(argv[2]) * kMiB;
  g_content = argv[3];
  if (g_bytes > 0) {
    fill_memory();
    pthread_t thread;
    pthread_create(&thread, NULL, writer, NULL);
  }
  if (argc == 9) {
    add_processes(atoi(argv[8]));
    add_threads(atoi(argv[4]));
    add_mappings(atoi(argv[5]));
    add_files(atoi(argv[6]), argv[0]);
    add_mixed(atoi(argv[7]), argv[1]);
  }
  g_control->pid = (uint64_t)getpid();
  g_control->address = (uintptr_t)g_memory;
  g_control->bytes = g_bytes;
  g_control->last_ns = now_ns();
  g_control->ready = 1;
  for (;;) {
    const struct timespec tick = {0, kTickNs};
    nanosleep(&tick, NULL);
    const uint64_t now = now_ns(), pause = now - g_control->last_ns;
    if (pause > g_control->longest_ns) {
      g_control->longest_ns = pause;
      g_control->longest_end_ns = now;
    }
    g_control->last_ns = now;
    ++g_control->ticks;
    if (g_control->command != kNone) obey((enum command)g_control->command);
  }
}
