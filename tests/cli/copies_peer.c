// usage: copies_peer MIB NUMBER_FILE [child]. Fills MIB of memory and checks it for good; once SIGUSR1 has told it a
// number it writes that to every 64th of the first 8 MiB of pages, and checks that nobody else's number is ever there.
// Says on standard output, a line a time, what it knows: "number N host H file F pid P rounds R". Ends with 3, and
// "bad", where something is not as it was left. "child": so does a child with the memory of its parent, which gets the
// number through a shared page; their end is each other's.
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kWordsOfPage = 512, kStep = 64, kWritten = 2048 };
static volatile sig_atomic_t *number;

static void take_number(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)context;
  *number = info->si_code == SI_QUEUE ? info->si_value.sival_int : -1;
}

static uint64_t mix(uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15u; }

static void say(const char *file, const char *who, uint64_t rounds) {
  char host[65] = "", text[64] = "?", line[256];
  gethostname(host, sizeof host - 1);
  int fd = open(file, O_RDONLY);
  ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (n > 0) text[n - 1] = 0;
  if (fd >= 0) close(fd);
  int length = snprintf(line, sizeof line, "%snumber %d host %s file %s pid %d rounds %llu\n", who, (int)*number, host,
                        text, (int)getpid(), (unsigned long long)rounds);
  if (write(1, line, (size_t)length) != length) _exit(4);
}

static int bad(const char *what) {
  dprintf(1, "bad %s\n", what);
  return 3;
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const size_t words = (size_t)atol(argv[1]) << 17;
  volatile uint64_t *memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  number = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || number == MAP_FAILED) return 4;
  for (size_t i = 0; i < words; ++i) memory[i] = mix(i);
  struct sigaction action = {.sa_sigaction = take_number, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGUSR1, &action, NULL);
  const int is_child = argc > 3 && fork() == 0;
  if (is_child) prctl(PR_SET_PDEATHSIG, SIGKILL);
  uint64_t told = 0;
  for (uint64_t round = 0;; ++round) {
    const uint64_t now = (uint64_t)*number;
    for (size_t page = 0; page < kWritten && page * kWordsOfPage < words; page += kStep) {
      volatile uint64_t *word = memory + page * kWordsOfPage;
      if (*word != (told == 0 ? mix(page * kWordsOfPage) : told)) return bad("own pages");
      if (now != 0) *word = now;
    }
    told = now;
    for (size_t i = kWritten * kWordsOfPage + round % 4099; i < words; i += 4099)
      if (memory[i] != mix(i)) return bad("memory");
    if (!is_child && argc > 3 && waitpid(-1, NULL, WNOHANG) != 0) return bad("child");
    say(argv[2], is_child ? "child " : "", round);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
  }
}
