// A self-checking target program. It sets up a state, says it is ready, goes on until it is told to check, verifies its
// state, writes a verdict and ends. All talk goes through files of its work folder (argv[1]), never through signals or
// descriptors, because those are under test:
//
//   ready    written by the target: its pid and a random number that only its memory knows
//   step     made by the runner: do the next change (target_wait's `step`); removed by the target when done
//   check    made by the runner: the number of steps that this state must have seen
//   result   written by the target: "pass NUMBER", "fail: why" or "skip: why"; NUMBER is that of `ready`
//
// A target of several processes: the root does the talking. Its children wait for files "go.N" that the root makes, and
// answer by their exit status; a child that finds something wrong writes the result itself, and the first word counts.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/// First call of every target. The work folder becomes the current one.
void target_init(int argc, char** argv);
/// The state is set up.
void target_ready(void);
/// Goes on until told to check; calls `step` (may be NULL) with 1, 2, ... for every step asked for meanwhile.
void target_wait(void (*step)(int number));
/// Steps done so far.
int target_steps(void);
/// Time that passed while the program stood still since target_wait began (frozen, dumped, not scheduled).
int64_t target_gap_ns(void);

_Noreturn void target_pass(void);
_Noreturn void target_fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// This machine lacks what the target tests. Only before target_ready.
_Noreturn void target_skip(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Fails with the text of the condition, its place and errno.
#define CHECK(condition)                                                                             \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      int check_errno_ = errno;                                                                      \
      target_fail("%s:%d: %s (errno %d)", __FILE_NAME__, __LINE__, #condition, check_errno_);        \
    }                                                                                                \
  } while (0)
/// Fails and says both values.
#define CHECK_EQUAL(left, right)                                                                     \
  do {                                                                                               \
    long long check_left_ = (long long)(left), check_right_ = (long long)(right);                    \
    if (check_left_ != check_right_)                                                                 \
      target_fail("%s:%d: %s is %lld, not %lld (%s)", __FILE_NAME__, __LINE__, #left, check_left_,   \
                  check_right_, #right);                                                             \
  } while (0)

#define PAGE_SIZE ((size_t)4096)

/// Forks; the child runs `body` and ends with the status that it returns. Returns once the child has called child_wait
/// or child_ready (or has ended). What is left of the root's children when it passes or fails is killed.
pid_t start_child(int (*body)(void*), void* argument);
/// The same through clone(2) with these flags and exit signal, on a stack of the child's own.
pid_t start_clone(int flags, int (*body)(void*), void* argument);
/// In a child: its state is set up.
void child_ready(void);
/// In a child: its state is set up, and it waits for release(phase).
void child_wait(int phase);
/// In a child that is ready already.
void await_release(int phase);
/// Lets everybody go on who waits for this phase, or will.
void release(int phase);
/// Reaps this child, which must have ended by itself with this status, or by this signal.
void expect_exit(pid_t child, int status);
void expect_signal(pid_t child, int number);
/// No child is left, neither running nor unreaped.
void expect_childless(void);

/// Of /proc/PID/stat. Fails if there is no such process.
struct Family {
  pid_t parent, group, session;
  char state;
};
struct Family family_of(pid_t pid);
/// Returns once the process is in this state ('T', 'Z', ...).
void wait_state(pid_t pid, char state);
/// Fails unless two descriptors of this process are one open file description, or, with `wanted` false, are two.
void expect_same_file(int left, pid_t other, int right, bool wanted);

pthread_t start_thread(void* (*body)(void*), void* argument);
/// Returns once /proc/TID/syscall says that the thread (of whatever process) sleeps in system call `number`, also one
/// that goes on after a stop.
void wait_blocked_in(pid_t tid, long number);
/// ... and in a read of its descriptor `fd`.
void wait_reading(pid_t tid, int fd);
pid_t get_tid(void);
int64_t now_ns(void);  ///< CLOCK_MONOTONIC
void sleep_ms(int ms);
/// A number that depends on both arguments in every bit.
uint64_t mix(uint64_t a, uint64_t b);
/// Fills and checks whole words from a seed. `first_wrong` returns -1 when all are right, else the index of the word.
void fill_words(void* memory, size_t bytes, uint64_t seed);
long first_wrong(const void* memory, size_t bytes, uint64_t seed);
/// Private anonymous memory, readable and writable.
void* map_pages(size_t bytes);
/// The value of a "Name:" line of /proc/self/status or another file of that kind, copied to `out`. False: no such line.
bool proc_field(const char* file, const char* name, char* out, size_t size);
/// The VmFlags line of the mapping that holds `address`; `permissions` gets "rw-p" (5 bytes). Fails if there is none.
void mapping_flags(const void* address, char* permissions, char* flags, size_t size);
/// A name for shm_open or sem_open that nobody else has; the runner removes what is left of it.
void target_shm_name(char* out, size_t size, const char* what);
