// Preloaded: what libckpt-cuda.so starts gets no thread.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  Dl_info about;
  if (dladdr(*(void**)&run, &about) != 0 && strstr(about.dli_fname, "libckpt-cuda.so") != NULL) return EAGAIN;
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  *(void**)&real = dlsym(RTLD_NEXT, "pthread_create");
  return real(thread, attributes, run, argument);
}
