// A table of system calls, and the machine code with which a thread of another process works through it by itself: in a
// process that is captured (call_batch.h) as in one that is being built (lib/state/tree/child.h). How the thread gets
// there, and what it runs into at the end, is theirs.
#pragma once

#include <sys/user.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace ckpt::proc {

using CallArguments = std::array<uint64_t, 6>;

/// What a system call that failed gives: -errno.
constexpr bool is_error(int64_t result) { return result < 0 && result > -4096; }

/// A row, as the code reads and writes it.
struct RemoteCall {
  uint32_t number = 0;
  uint32_t may_fail = 0;  ///< 0: the code goes no further where the call fails; 1: on to the next row
  CallArguments args{};
  int64_t result = 0;
};
static_assert(sizeof(RemoteCall) == 64 && offsetof(RemoteCall, args) == 8 && offsetof(RemoteCall, result) == 56);

template <size_t N>
using MachineCode = std::array<uint8_t, N>;

/// Pieces of machine code, one behind the other.
template <size_t... N>
constexpr auto join_code(const MachineCode<N>&... pieces) {
  MachineCode<(N + ...)> out{};
  size_t at = 0;
  auto append = [&](const auto& piece) {
    for (uint8_t byte : piece) out[at++] = byte;
  };
  (append(pieces), ...);
  return out;
}

/// rbx walks the table up to r12, and the end of this code is the way out: rbx is then behind the last call that was
/// made. It may lie anywhere and uses no stack, so it runs in a thread that has none. Of a thread that is abandoned on
/// its way nothing is expected but that it goes on.
inline constexpr MachineCode<55> kTableCode{
    0x4c, 0x39, 0xe3,                    //  0 next: cmp rbx, r12
    0x73, 0x32,                          //  3       jae done
    0x8b, 0x03,                          //  5       mov eax, [rbx]
    0x48, 0x8b, 0x7b, 0x08,              //  7       mov rdi, [rbx+8]
    0x48, 0x8b, 0x73, 0x10,              // 11       mov rsi, [rbx+16]
    0x48, 0x8b, 0x53, 0x18,              // 15       mov rdx, [rbx+24]
    0x4c, 0x8b, 0x53, 0x20,              // 19       mov r10, [rbx+32]
    0x4c, 0x8b, 0x43, 0x28,              // 23       mov r8, [rbx+40]
    0x4c, 0x8b, 0x4b, 0x30,              // 27       mov r9, [rbx+48]
    0x0f, 0x05,                          // 31       syscall
    0x48, 0x89, 0x43, 0x38,              // 33       mov [rbx+56], rax
    0x48, 0x83, 0xc3, 0x40,              // 37       add rbx, 64
    0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff,  // 41       cmp rax, -4095
    0x72, 0xcf,                          // 47       jb next
    0xf6, 0x43, 0xc4, 0x01,              // 49       test byte [rbx-60], 1
    0x75, 0xc9,                          // 53       jnz next
};                                       // 55 done:
/// Its `syscall` instruction, and where that returns to.
inline constexpr uint64_t kTableCallAt = 31, kTableReturnAt = 33;
static_assert(kTableCode[kTableCallAt] == 0x0f && kTableCode[kTableReturnAt - 1] == 0x05);

/// A thread about to run the code at `code` over `rows` rows at `table`.
inline user_regs_struct at_table(user_regs_struct regs, uint64_t code, uint64_t table, size_t rows) {
  regs.rip = code, regs.rbx = table, regs.r12 = table + rows * sizeof(RemoteCall);
  regs.orig_rax = ~0ull;  // not in a system call: nothing to restart
  return regs;
}

/// How many calls it has made since.
inline size_t calls_made(const user_regs_struct& regs, uint64_t table) {
  return (regs.rbx - table) / sizeof(RemoteCall);
}

/// A thread about to make one call by the `syscall` instruction at `instruction`.
inline user_regs_struct at_call(user_regs_struct regs, uint64_t instruction, uint64_t number,
                                const CallArguments& args) {
  regs.rip = instruction, regs.rax = number, regs.orig_rax = ~0ull;
  regs.rdi = args[0], regs.rsi = args[1], regs.rdx = args[2], regs.r10 = args[3], regs.r8 = args[4], regs.r9 = args[5];
  return regs;
}

}  // namespace ckpt::proc
