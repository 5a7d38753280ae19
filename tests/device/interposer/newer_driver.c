/* A driver of which the interposer's table of names knows nothing: newer, and without most of the old. */
#include <stdint.h>
#include <string.h>

__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)flags; }
__attribute__((visibility("default"))) int cuOfTomorrow(void) { return 42; }
__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                                               uint64_t flags, int* status) {
  (void)version, (void)flags;
  *function = strcmp(symbol, "cuOfTomorrow") == 0 ? (void*)(uintptr_t)&cuOfTomorrow : NULL;
  *status = *function == NULL;
  return *function == NULL ? 500 : 0;
}
