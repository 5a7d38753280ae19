// Handlers with their flags and masks, ignored signals, and delivery on the alternate stack.
#include "target.h"

static struct Case {
  int number, flags;
} g_case[] = {
    {SIGUSR1, SA_SIGINFO},         {SIGUSR2, SA_SIGINFO | SA_RESTART},    {SIGHUP, SA_SIGINFO | SA_ONSTACK},
    {SIGALRM, SA_SIGINFO | SA_NODEFER}, {SIGWINCH, SA_SIGINFO | SA_RESETHAND}, {SIGCHLD, SA_SIGINFO | SA_NOCLDSTOP},
    {SIGSEGV, SA_SIGINFO | SA_ONSTACK | SA_RESTART},
};
enum { kCases = sizeof g_case / sizeof g_case[0] };
enum { kRestorer = 0x04000000 };  // SA_RESTORER: libc adds and shows it
static volatile int g_taken[65];
static char* g_alternate;
static volatile bool g_on_alternate;

static void handle(int number, siginfo_t* info, void* context) {
  char here;
  (void)context;
  if (info->si_signo == number) ++g_taken[number];
  g_on_alternate = &here >= g_alternate && &here < g_alternate + 65536;
}

static void mask_for(int index, sigset_t* mask) {
  sigemptyset(mask);
  sigaddset(mask, SIGRTMIN + index);
  if (index % 2 == 0) sigaddset(mask, SIGQUIT);
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  g_alternate = map_pages(65536);
  stack_t stack = {.ss_sp = g_alternate, .ss_size = 65536};
  CHECK_EQUAL(sigaltstack(&stack, NULL), 0);
  for (int i = 0; i < kCases; ++i) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handle;
    action.sa_flags = g_case[i].flags;
    mask_for(i, &action.sa_mask);
    CHECK_EQUAL(sigaction(g_case[i].number, &action, NULL), 0);
  }
  CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
  CHECK(signal(SIGRTMIN + 20, SIG_IGN) != SIG_ERR);
  target_ready();
  target_wait(NULL);

  struct sigaction action;
  for (int i = 0; i < kCases; ++i) {
    sigset_t mask;
    mask_for(i, &mask);
    CHECK_EQUAL(sigaction(g_case[i].number, NULL, &action), 0);
    CHECK(action.sa_sigaction == handle);
    CHECK_EQUAL(action.sa_flags & ~kRestorer, g_case[i].flags);
    CHECK(memcmp(&action.sa_mask, &mask, 8) == 0);
  }
  for (int i = 0; i < kCases; ++i) {
    CHECK_EQUAL(raise(g_case[i].number), 0);
    CHECK_EQUAL(g_taken[g_case[i].number], 1);
    CHECK_EQUAL(g_on_alternate, (g_case[i].flags & SA_ONSTACK) != 0);
  }
  CHECK_EQUAL(sigaction(SIGWINCH, NULL, &action), 0);
  CHECK(action.sa_handler == SIG_DFL);
  CHECK_EQUAL(raise(SIGPIPE), 0);
  CHECK_EQUAL(raise(SIGRTMIN + 20), 0);
  CHECK_EQUAL(sigaction(SIGINT, NULL, &action), 0);
  CHECK(action.sa_handler == SIG_DFL);
  CHECK_EQUAL(sigaltstack(NULL, &stack), 0);
  CHECK(stack.ss_sp == g_alternate && stack.ss_size == 65536 && stack.ss_flags == 0);
  target_pass();
}
