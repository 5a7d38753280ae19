// usage: migrate_peer COUNT_FILE MIB [HOT_MIB]. Counts in memory and in a file, and checks both: that its memory is as
// it made it, and that nobody else, its own copy for instance, counts in the same file. Ends with 3 where that is not
// so, and says so in COUNT_FILE.bad. A second thread counts along. HOT_MIB: so much of MIB is written again all the
// time, 128 MiB a second. Once there is a file COUNT_FILE.orphans it makes, each time it counts, a process that is
// nobody's child and in a session of its own, until there are 50.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t beside;

static void nap(long ns) { nanosleep(&(struct timespec){0, ns}, NULL); }

static void *count_beside(void *unused) {
  (void)unused;
  for (;; nap(1000000)) ++beside;
  return NULL;
}

static void bad(const char *file, const char *what) {
  char name[512];
  snprintf(name, sizeof name, "%s.bad", file);
  int fd = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (write(fd, what, strlen(what)) < 0) _exit(4);
  _exit(3);
}

static uint64_t mix(uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15u; }

static void make_orphan(void) {
  int middle = fork();
  if (middle == 0) {
    if (fork() != 0) _exit(0);
    setsid();
    for (;;) pause();
  }
  if (middle > 0) waitpid(middle, NULL, 0);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const size_t words = (size_t)atol(argv[2]) << 17, hot = argc > 3 ? (size_t)atol(argv[3]) << 17 : 1 << 14;
  volatile uint64_t *memory = malloc(words * 8);
  uint64_t count = 0, round = 0;
  for (size_t i = 0; i < words; ++i) memory[i] = mix(i);
  int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
  if (fd < 0 || pwrite(fd, &count, sizeof count, 0) != sizeof count) return 4;
  pthread_t thread;
  if (pthread_create(&thread, NULL, count_beside, NULL) != 0) return 4;
  char orphans[512];
  snprintf(orphans, sizeof orphans, "%s.orphans", argv[1]);
  int made = 0;
  for (uint64_t last_beside = 0;; nap(2000000)) {
    if (made < 50 && access(orphans, F_OK) == 0) make_orphan(), ++made;
    uint64_t there;
    if (pread(fd, &there, sizeof there, 0) != sizeof there || there != count) bad(argv[1], "another one counts\n");
    ++count;
    if (pwrite(fd, &count, sizeof count, 0) != sizeof count) return 4;
    for (size_t i = 0; i < 64; ++i) {
      const size_t at = round++ * 512 % hot;  // a word of each page
      memory[at] ^= count;
      memory[at] ^= count;
    }
    for (size_t i = count * 4099 % 4096; i < words; i += 65536)
      if (memory[i] != mix(i)) bad(argv[1], "memory\n");
    if (count % 512 == 0 && beside == last_beside) bad(argv[1], "the other thread\n");
    if (count % 512 == 0) last_beside = beside;
  }
}
