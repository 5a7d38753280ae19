// The image is taken while a handler runs on the alternate stack, above an interrupted computation with live registers.
#include "target.h"

static volatile bool g_inside, g_leave;
static volatile uint64_t g_result;

static void handle(int number) {
  (void)number;
  g_inside = true;
  while (!g_leave) sleep_ms(2);
}

static void* compute(void* unused) {
  stack_t stack = {.ss_sp = map_pages(65536), .ss_size = 65536};
  CHECK_EQUAL(sigaltstack(&stack, NULL), 0);
  double sum = 0;
  uint64_t word = 1, rounds = 0;
  do {
    word = mix(word, rounds);
    sum += 1.0 / (double)(rounds + 1);
    ++rounds;
  } while (!g_inside || rounds % 1000 != 0);
  double again = 0;
  uint64_t word_again = 1;
  for (uint64_t i = 0; i < rounds; ++i) {
    word_again = mix(word_again, i);
    again += 1.0 / (double)(i + 1);
  }
  g_result = word == word_again && sum == again ? 1 : 2;
  CHECK_EQUAL(sigaltstack(NULL, &stack), 0);
  CHECK_EQUAL(stack.ss_flags, 0);
  return unused;
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handle;
  action.sa_flags = SA_ONSTACK;
  CHECK_EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
  pthread_t thread = start_thread(compute, NULL);
  sleep_ms(10);
  CHECK_EQUAL(pthread_kill(thread, SIGUSR1), 0);
  while (!g_inside) sleep_ms(1);
  target_ready();
  target_wait(NULL);
  g_leave = true;
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
  CHECK_EQUAL(g_result, 1);
  target_pass();
}
