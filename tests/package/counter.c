// Counts in a file until it is ended, and needs nothing of the system that it runs on: no library, no standard stream.
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char** argv) {
  int out = argc == 2 ? open(argv[1], O_WRONLY | O_CREAT, 0644) : -1;
  if (out < 0) return 1;
  for (int fd = 0; fd < 3; ++fd) close(fd);
  for (unsigned long count = 1;; ++count) {
    char line[32];
    int length = snprintf(line, sizeof line, "%020lu\n", count);
    if (pwrite(out, line, (size_t)length, 0) != length) return 1;
    nanosleep(&(struct timespec){0, 2000000}, NULL);
  }
}
