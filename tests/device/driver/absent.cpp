// Every function that a driver exports is there, for libraries refuse a driver that lacks some; whoever calls one that
// is not defined elsewhere is told which it was.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" __attribute__((used, visibility("hidden"), noreturn)) void ckpt_standin_absent(const char* name) {
  ::fprintf(stderr, "stand-in: %s is not there\n", name);
  ::abort();
}

// In assembler: as C++ these have their own parameters elsewhere.
#define CKPT_NAME(name, words)                                                                \
  extern "C" void ckpt_any_##name() asm(#name);                                               \
  asm(".weak " #name "\n.type " #name ", @function\n" #name ":\n"                             \
      "lea 1f(%rip), %rdi\nsub $8, %rsp\ncall ckpt_standin_absent\n1: .asciz \"" #name "\"\n" \
      ".size " #name ", . - " #name "\n");
#include "plugins/interposer/names.inc"
CKPT_NAME(cuVDPAUGetDevice, 3)
CKPT_NAME(cuVDPAUCtxCreate_v2, 5)
CKPT_NAME(cuGraphicsVDPAURegisterVideoSurface, 3)
CKPT_NAME(cuGraphicsVDPAURegisterOutputSurface, 3)
#undef CKPT_NAME

namespace ckpt::standin {

void* exported(const char* name) {
  static constexpr struct {
    const char* name;
    void (*function)();
  } kAll[] = {
#define CKPT_NAME(name, words) {#name, &ckpt_any_##name},
#include "plugins/interposer/names.inc"
  };
  for (const auto& each : kAll)
    if (::strcmp(each.name, name) == 0) return reinterpret_cast<void*>(each.function);
  return nullptr;
}

}  // namespace ckpt::standin
