#include "plugins/interposer/thread.h"

#include <pthread.h>
#include <signal.h>

namespace ckpt::interposer {

bool start_thread(void* (*run)(void*), size_t stack, const char* name) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (stack != 0) pthread_attr_setstacksize(&attributes, stack);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, run, nullptr) == 0;
  if (started && name != nullptr) pthread_setname_np(thread, name);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace ckpt::interposer
