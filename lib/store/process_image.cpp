#include "lib/store/process_image.h"

namespace ckpt::store {

const std::array<const char*, 27> kRegisterNames = {
    "r15", "r14", "r13", "r12",    "rbp", "rbx", "r11",     "r10",     "r9", "r8", "rax", "rcx", "rdx", "rsi",
    "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"};

}  // namespace ckpt::store
