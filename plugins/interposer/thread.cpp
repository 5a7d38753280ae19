#include "plugins/interposer/thread.h"

#include <pthread.h>
#include <signal.h>

#include <cerrno>

namespace ckpt::interposer {

int start_thread(void* (*run)(void*), size_t stack, const char* name) {
  constexpr size_t kFirst = 1 << 20, kMost = 1 << 30;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (stack != 0) pthread_attr_setstacksize(&attributes, stack);
  pthread_t thread;
  int failed = pthread_create(&thread, &attributes, run, nullptr);
  // Thread-local variables are carved out of the stack; how large they are the C library does not tell.
  for (size_t more = stack == 0 ? kFirst : 2 * stack; failed == EINVAL && more <= kMost; more *= 2) {
    pthread_attr_setstacksize(&attributes, more);
    failed = pthread_create(&thread, &attributes, run, nullptr);
  }
  if (failed == 0 && name != nullptr) pthread_setname_np(thread, name);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return failed;
}

}  // namespace ckpt::interposer
