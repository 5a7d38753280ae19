#include "lib/proc/signal_frame.h"

#include <asm/sigcontext.h>
#include <cpuid.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/base/checked.h"

namespace ckpt::proc {

namespace {

// struct rt_sigframe of arch/x86/include/asm/sigframe.h: char* pretcode; struct ucontext uc; siginfo.
struct KernelUcontext {
  uint64_t flags = 0, link = 0;
  uint64_t stack_pointer = 0;
  uint32_t stack_flags = 0, pad = 0;
  uint64_t stack_size = 0;
  sigcontext_64 context{};
  uint64_t mask = 0;
};
struct Frame {
  uint64_t return_address = 0;
  KernelUcontext uc;
};

constexpr uint64_t kUcFpXstate = 1, kUcSigcontextSs = 2, kUcStrictRestoreSs = 4;
constexpr uint64_t kTileBits = uint64_t{3} << 17;  // XTILECFG, XTILEDATA
constexpr size_t kSwReserved = 464, kXstateBv = 512;

uint64_t load64(const std::vector<std::byte>& area, size_t at) {
  uint64_t out = 0;
  if (at + sizeof out <= area.size()) std::memcpy(&out, area.data() + at, sizeof out);
  return out;
}

/// Where each component of a standard-format XSAVE area ends. Asked once: CPUID is a trap in a virtual machine, and
/// each call in a target takes frames.
std::array<uint32_t, 63> ask_component_ends() {
  std::array<uint32_t, 63> out{};
  unsigned low = 0, size = 0, c = 0, high = 0;
  if (__get_cpuid_count(0xd, 0, &low, &size, &c, &high) == 0) return out;
  const uint64_t supported = low | uint64_t{high} << 32;
  for (unsigned i = 2; i < out.size(); ++i) {
    unsigned bytes = 0, offset = 0, d = 0;
    if ((supported >> i & 1) == 0) continue;
    __cpuid_count(0xd, i, bytes, offset, c, d);
    out[i] = offset + bytes;
  }
  return out;
}

/// Size of a standard-format XSAVE area with these features: the kernel refuses a frame larger than what the task may
/// use.
uint32_t xsave_size(uint64_t features) {
  static const std::array<uint32_t, 63> kEnds = ask_component_ends();
  uint32_t size = 576;
  for (unsigned i = 2; i < kEnds.size(); ++i) {
    if ((features >> i & 1) != 0) size = std::max(size, kEnds[i]);
  }
  return size;
}

}  // namespace

user_regs_struct with_restarted_call(user_regs_struct regs) {
  constexpr long kRestartSys = -512, kRestartNoIntr = -513, kRestartNoHand = -514, kRestartBlock = -516;
  constexpr long kRestartSyscallNumber = 219;
  if (static_cast<long>(regs.orig_rax) < 0) return regs;
  switch (static_cast<long>(regs.rax)) {
    case kRestartSys: case kRestartNoIntr: case kRestartNoHand:
      regs.rax = regs.orig_rax;
      regs.rip -= 2;
      break;
    case kRestartBlock:
      regs.rax = kRestartSyscallNumber;
      regs.rip -= 2;
      break;
    default: break;
  }
  regs.orig_rax = ~0ull;
  return regs;
}

std::vector<std::byte> make_signal_frame(uint64_t address, const user_regs_struct& live,
                                         const std::vector<std::byte>& xstate, uint64_t signal_mask) {
  user_regs_struct regs = with_restarted_call(live);
  uint64_t features = load64(xstate, kSwReserved);
  if ((load64(xstate, kXstateBv) & kTileBits) == 0) features &= ~kTileBits;
  uint32_t size = std::min<uint32_t>(xsave_size(features), static_cast<uint32_t>(xstate.size()));
  const size_t fp_at = align_up(sizeof(Frame), size_t{64});

  Frame frame;
  frame.uc.flags = kUcFpXstate | kUcSigcontextSs | kUcStrictRestoreSs;
  frame.uc.stack_flags = 0x7777;
  sigcontext_64& sc = frame.uc.context;
  sc.r8 = regs.r8, sc.r9 = regs.r9, sc.r10 = regs.r10, sc.r11 = regs.r11, sc.r12 = regs.r12, sc.r13 = regs.r13;
  sc.r14 = regs.r14, sc.r15 = regs.r15, sc.di = regs.rdi, sc.si = regs.rsi, sc.bp = regs.rbp, sc.bx = regs.rbx;
  sc.dx = regs.rdx, sc.ax = regs.rax, sc.cx = regs.rcx, sc.sp = regs.rsp, sc.ip = regs.rip, sc.flags = regs.eflags;
  sc.cs = static_cast<uint16_t>(regs.cs), sc.ss = static_cast<uint16_t>(regs.ss);
  sc.fpstate = address + fp_at;
  sc.oldmask = signal_mask;
  frame.uc.mask = signal_mask;

  std::vector<std::byte> out(fp_at + size + sizeof(uint32_t));
  std::memcpy(out.data(), &frame, sizeof frame);
  std::memcpy(out.data() + fp_at, xstate.data(), size);
  _fpx_sw_bytes sw{};
  sw.magic1 = FP_XSTATE_MAGIC1;
  sw.extended_size = size + static_cast<uint32_t>(sizeof(uint32_t));
  sw.xfeatures = features;
  sw.xstate_size = size;
  std::memcpy(out.data() + fp_at + kSwReserved, &sw, sizeof sw);
  uint32_t magic2 = FP_XSTATE_MAGIC2;
  std::memcpy(out.data() + fp_at + size, &magic2, sizeof magic2);
  return out;
}

}  // namespace ckpt::proc
