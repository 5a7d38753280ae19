// The code in a parasite area (borrowed_thread.h), and how such an area is known in a process that ckpt did not leave
// in order.
#pragma once

#include <cstdint>

#include "lib/proc/call_table.h"
#include "lib/proc/ptrace.h"

namespace ckpt::proc {

/// What a snapshot exits with that ckpt was killed before it held it: it runs, and its first instructions end it. Only
/// its parent sees that.
inline constexpr uint8_t kUnheldSnapshotExit = 158;

/// Where a parasite area is asked for ("ckpt" in letters): where the kernel hardly places any of a program's mappings,
/// so that one is known even when ckpt was killed before its code was there. The kernel chooses another place where
/// this one is taken.
inline constexpr uint64_t kParasiteAddress = 0x636b'7074'0000;

/// Whether ckpt's code lies at `at`.
bool is_parasite(int pid, RemoteAddress at);

namespace parasite {

// All of it ends in rt_sigreturn over the frame of the thread's own state, so that a thread which is abandoned at any
// instruction restores itself.
inline constexpr MachineCode<8> kRestoreSelf{
    0xb8, 0x0f, 0x00, 0x00, 0x00,  // mov  eax, 15
    0x0f, 0x05,                    // syscall
    0xcc,
};
inline constexpr MachineCode<2> kCall{0x0f, 0x05};
/// The child, should it ever run, exits at once (231 is exit_group).
inline constexpr MachineCode<18> kFork{
    0x0f, 0x05,                                   // syscall
    0x85, 0xc0,                                   // test eax, eax
    0x75, 0x0c,                                   // jne  +12
    0xbf, kUnheldSnapshotExit, 0x00, 0x00, 0x00,  // mov  edi, 158
    0xb8, 0xe7, 0x00, 0x00, 0x00,                 // mov  eax, 231
    0x0f, 0x05,                                   // syscall
};
/// A call that makes a descriptor, which is closed where nobody takes it.
inline constexpr MachineCode<11> kOpen{
    0x0f, 0x05,                    // syscall
    0x89, 0xc7,                    // mov  edi, eax
    0xb8, 0x03, 0x00, 0x00, 0x00,  // mov  eax, 3
    0x0f, 0x05,                    // syscall
};

inline constexpr auto kCode =
    join_code(kCall, kRestoreSelf, kFork, kRestoreSelf, kOpen, kRestoreSelf, kTableCode, kRestoreSelf);
inline constexpr uint64_t kCallAt = 0, kForkAt = kCallAt + kCall.size() + kRestoreSelf.size(),
                          kOpenAt = kForkAt + kFork.size() + kRestoreSelf.size(),
                          kTableAt = kOpenAt + kOpen.size() + kRestoreSelf.size();
static_assert(kTableAt + kTableCode.size() + kRestoreSelf.size() == kCode.size());

}  // namespace parasite

}  // namespace ckpt::proc
