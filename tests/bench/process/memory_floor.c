// What the machine allows: moves `mib` MiB as a checkpoint must, with `threads` threads, and prints seconds.
//   memory_floor hold MIB FILE         touches MIB of memory, half of it random, writes its pid and address to FILE, waits
//   memory_floor copy MIB THREADS      memory to memory, both touched before
//   memory_floor readv MIB THREADS PID ADDRESS   process_vm_readv into one hot buffer a thread
//   memory_floor fill MIB THREADS      fresh anonymous pages, each written once
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { kBlock = 1 << 20, kMaxThreads = 64 };
static size_t g_bytes;
static int g_threads;
static pid_t g_pid;
static char *g_from, *g_to;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static char* map_bytes(void) {
  char* memory = mmap(NULL, g_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return memory;
}

static void part(intptr_t index, size_t* start, size_t* end) {
  size_t blocks = g_bytes / kBlock;
  *start = blocks * (size_t)index / (size_t)g_threads * kBlock;
  *end = blocks * (size_t)(index + 1) / (size_t)g_threads * kBlock;
}

static void* copy(void* index) {
  size_t start, end;
  part((intptr_t)index, &start, &end);
  memcpy(g_to + start, g_from + start, end - start);
  return NULL;
}

static void* fill(void* index) {
  size_t start, end;
  part((intptr_t)index, &start, &end);
  memset(g_to + start, 1, end - start);
  return NULL;
}

static void* read_remote(void* index) {
  size_t start, end;
  char* buffer = malloc(kBlock);
  memset(buffer, 1, kBlock);
  part((intptr_t)index, &start, &end);
  for (size_t at = start; at < end; at += kBlock) {
    struct iovec local = {buffer, kBlock}, remote = {g_from + at, kBlock};
    if (process_vm_readv(g_pid, &local, 1, &remote, 1, 0) != kBlock) {
      perror("process_vm_readv");
      exit(1);
    }
  }
  free(buffer);
  return NULL;
}

static double run(void* (*body)(void*)) {
  pthread_t thread[kMaxThreads];
  double begin = seconds();
  for (intptr_t i = 0; i < g_threads; ++i) pthread_create(&thread[i], NULL, body, (void*)i);
  for (int i = 0; i < g_threads; ++i) pthread_join(thread[i], NULL);
  return seconds() - begin;
}

static void hold(const char* path) {
  uint64_t* word = (uint64_t*)(void*)map_bytes();
  uint64_t state = 88172645463325252u;
  for (size_t i = 0; i < g_bytes / 8; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    word[i] = i / 512 % 2 == 0 ? state : i / 512;  // every second page does not compress
  }
  FILE* out = fopen(path, "w");
  fprintf(out, "%d %p\n", getpid(), (void*)word);
  fclose(out);
  // One page in sixteen changes when FILE.touch appears.
  char touch[4096];
  snprintf(touch, sizeof touch, "%s.touch", path);
  for (;; usleep(2000)) {
    if (access(touch, F_OK) != 0) continue;
    for (size_t page = 0; page < g_bytes / 4096; page += 16) ++word[page * 512];
    unlink(touch);
  }
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  g_bytes = (size_t)atol(argv[2]) << 20;
  if (strcmp(argv[1], "hold") == 0) hold(argv[3]);
  g_threads = atoi(argv[3]);
  if (g_threads < 1 || g_threads > kMaxThreads) return 2;
  double took = 0;
  if (strcmp(argv[1], "copy") == 0) {
    g_from = map_bytes(), g_to = map_bytes();
    memset(g_from, 1, g_bytes), memset(g_to, 2, g_bytes);
    took = run(copy);
  } else if (strcmp(argv[1], "fill") == 0) {
    g_to = map_bytes();
    took = run(fill);
  } else if (argc == 6) {
    g_pid = atoi(argv[4]);
    g_from = (char*)strtoul(argv[5], NULL, 16);
    took = run(read_remote);
  }
  printf("%.6f\n", took);
  return 0;
}
