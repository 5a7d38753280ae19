#include "lib/proc/ptrace.h"

#include <elf.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>

#include "lib/base/clock.h"
#include "lib/proc/procfs.h"

namespace ckpt::proc {

namespace {

/// glibc's prototype takes an enum of its own; the kernel's requests are plain numbers.
long do_ptrace(int request, int tid, uint64_t address, uint64_t data) {
  return ::ptrace(static_cast<__ptrace_request>(request), tid, reinterpret_cast<void*>(address),
                  reinterpret_cast<void*>(data));
}

Error ptrace_error(int tid, const char* what) {
  int err = errno;
  if (err == ESRCH) return Error(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
  return sys_error(err, "thread " + std::to_string(tid), what);
}

uint64_t pointer(const void* p) { return reinterpret_cast<uint64_t>(p); }

}  // namespace

Result<void> seize(int tid, unsigned long options) {
  if (do_ptrace(PTRACE_SEIZE, tid, 0, options | PTRACE_O_TRACESYSGOOD) == 0) return {};
  Error error = ptrace_error(tid, "cannot attach (ptrace)");
  if (error.sys_errno == EPERM) {
    // A task on its way out has lost its memory, and with it what would permit the attachment: EPERM, not ESRCH.
    auto stat = read_stat(tid);
    if (!stat || stat->is_ending()) return fail(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
    auto status = read_status(tid, tid);
    if (status && status->tracer != 0) {
      return fail(Code::kBusy, describe_pid(tid), "is already traced by " + describe_pid(status->tracer));
    }
  }
  return error;
}

Result<void> interrupt(int tid) {
  if (do_ptrace(PTRACE_INTERRUPT, tid, 0, 0) != 0) return ptrace_error(tid, "cannot stop");
  return {};
}

Result<void> detach(int tid, int signal) {
  if (do_ptrace(PTRACE_DETACH, tid, 0, static_cast<uint64_t>(signal)) != 0) return ptrace_error(tid, "cannot release");
  return {};
}

namespace {

Stop decode_stop(int status) {
  Stop out;
  out.status = status;
  if (!WIFSTOPPED(status)) return out;
  out.signal = WSTOPSIG(status);
  out.event = status >> 16;
  if (out.event == PTRACE_EVENT_STOP) {
    out.kind = out.signal == SIGTRAP ? StopKind::kTrap : StopKind::kGroupStop;
  } else if (out.event != 0) {
    out.kind = StopKind::kEvent;
  } else if (out.signal == (SIGTRAP | 0x80)) {
    out.kind = StopKind::kSyscall;
  } else {
    out.kind = StopKind::kSignal;
  }
  return out;
}

constexpr unsigned kYields = 200;
constexpr uint64_t kLongestUs = 600'000'000;

/// Gives the processor away at first (a stop takes microseconds), then sleeps: waitpid has no time limit of its own.
void back_off(unsigned round) {
  if (round < kYields) {
    sched_yield();
    return;
  }
  timespec nap{0, round < 1000 ? 50'000 : 1'000'000};
  nanosleep(&nap, nullptr);
}

}  // namespace

Result<Stop> wait_stop(int tid, uint64_t timeout_us) {
  const uint64_t start = monotonic_us();
  for (unsigned round = 1;; ++round) {
    // Never blocking: waitpid for a killed process's first thread does not return before its other threads were waited
    // for, and those may well be ours to wait for, too.
    int status = 0;
    pid_t got = ::waitpid(tid, &status, __WALL | WNOHANG);
    if (got == tid) return decode_stop(status);
    if (got < 0 && errno != EINTR) return fail(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
    constexpr unsigned kRoundsBetweenLooks = 1024;
    if (round % kRoundsBetweenLooks == 0) {
      auto stat = read_stat(tid);
      if (!stat || stat->state == 'Z' || stat->state == 'X') return Stop{};
    }
    if (monotonic_us() - start > (timeout_us != 0 ? timeout_us : kLongestUs)) {
      return fail(Code::kBusy, "thread " + std::to_string(tid), "did not stop in time (in an uninterruptible wait?)");
    }
    // The first thread of a killed process is reported only after all the others, which may be waiting for us in turn.
    if (timeout_us != 0 && round >= kYields && round % 64 == 0) {
      auto stat = read_stat(tid);
      if (stat && stat->state != 'Z' && stat->state != 'X') continue;
      if (::waitpid(tid, &status, __WALL | WNOHANG) == tid) return decode_stop(status);
      return fail(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
    }
    back_off(round);
  }
}

Result<void> resume(int tid, Resume how, int signal) {
  int request = how == Resume::kRun ? PTRACE_CONT : PTRACE_SYSCALL;
  if (do_ptrace(request, tid, 0, static_cast<uint64_t>(signal)) != 0) return ptrace_error(tid, "cannot resume");
  return {};
}

Result<user_regs_struct> get_registers(int tid) {
  user_regs_struct regs{};
  iovec iov{&regs, sizeof regs};
  if (do_ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, pointer(&iov)) != 0)
    return ptrace_error(tid, "cannot read the registers");
  if (iov.iov_len != sizeof regs) {
    return fail(Code::kUnsupported, "thread " + std::to_string(tid), "is a 32-bit task, which is not supported");
  }
  return regs;
}

Result<void> set_registers(int tid, const user_regs_struct& regs) {
  iovec iov{const_cast<user_regs_struct*>(&regs), sizeof regs};
  if (do_ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, pointer(&iov)) != 0)
    return ptrace_error(tid, "cannot set the registers");
  return {};
}

Result<std::vector<std::byte>> get_xstate(int tid) {
  static thread_local std::array<std::byte, 64 * 1024> room;
  iovec iov{room.data(), room.size()};
  if (do_ptrace(PTRACE_GETREGSET, tid, NT_X86_XSTATE, pointer(&iov)) != 0) {
    return ptrace_error(tid, "cannot read the extended registers");
  }
  return std::vector<std::byte>(room.begin(), room.begin() + static_cast<long>(iov.iov_len));
}

Result<void> set_xstate(int tid, const std::vector<std::byte>& area) {
  iovec iov{const_cast<std::byte*>(area.data()), area.size()};
  if (do_ptrace(PTRACE_SETREGSET, tid, NT_X86_XSTATE, pointer(&iov)) != 0) {
    return ptrace_error(tid, "cannot set the extended registers");
  }
  return {};
}

Result<uint64_t> get_signal_mask(int tid) {
  uint64_t mask = 0;
  if (do_ptrace(PTRACE_GETSIGMASK, tid, sizeof mask, pointer(&mask)) != 0)
    return ptrace_error(tid, "cannot read the signal mask");
  return mask;
}

Result<void> set_signal_mask(int tid, uint64_t mask) {
  if (do_ptrace(PTRACE_SETSIGMASK, tid, sizeof mask, pointer(&mask)) != 0)
    return ptrace_error(tid, "cannot set the signal mask");
  return {};
}

Result<std::vector<std::array<uint8_t, 128>>> peek_signals(int tid, bool shared) {
  static_assert(sizeof(siginfo_t) == 128);
  std::vector<std::array<uint8_t, 128>> out;
  for (;;) {
    std::array<std::array<uint8_t, 128>, 16> batch{};
    __ptrace_peeksiginfo_args args{};
    args.off = out.size();
    args.flags = shared ? PTRACE_PEEKSIGINFO_SHARED : 0;
    args.nr = static_cast<int32_t>(batch.size());
    long n = do_ptrace(PTRACE_PEEKSIGINFO, tid, pointer(&args), pointer(batch.data()));
    if (n < 0) return ptrace_error(tid, "cannot read the queued signals");
    if (n == 0) return out;
    out.insert(out.end(), batch.begin(), batch.begin() + n);
  }
}

Result<RseqConfiguration> get_rseq(int tid) {
  struct {  // struct ptrace_rseq_configuration of linux/ptrace.h
    uint64_t rseq_abi_pointer;
    uint32_t rseq_abi_size, signature, flags, pad;
  } raw_config{};
  constexpr int kGetRseqConfiguration = 0x420f;
  if (do_ptrace(kGetRseqConfiguration, tid, sizeof raw_config, pointer(&raw_config)) < 0) {
    if (errno == EIO || errno == EINVAL) return RseqConfiguration{};
    return ptrace_error(tid, "cannot read the rseq registration");
  }
  return RseqConfiguration{raw_config.rseq_abi_pointer, raw_config.rseq_abi_size, raw_config.signature};
}

Result<void> refuse_dispatched_calls(int tid) {
  struct {  // struct ptrace_sud_config of linux/ptrace.h
    uint64_t mode, selector, offset, length;
  } config{};
  constexpr int kGetDispatchConfiguration = 0x4211;
  // A kernel before 6.4 does not know the question.
  if (do_ptrace(kGetDispatchConfiguration, tid, sizeof config, pointer(&config)) != 0 || config.mode == 0) return {};
  return fail(Code::kUnsupported, "thread " + std::to_string(tid),
              "has its system calls dispatched to a handler of its own (PR_SET_SYSCALL_USER_DISPATCH), which is not "
              "supported");
}

Result<void> refuse_io_ports(int tid) {
  constexpr int kPorts = 0x201;  // NT_386_IOPERM
  uint64_t word = 0;
  iovec room{&word, sizeof word};
  // Who has no leave, or a kernel without CONFIG_X86_IOPORT_PERM, has no such set.
  if (do_ptrace(PTRACE_GETREGSET, tid, kPorts, pointer(&room)) != 0) return {};
  return fail(Code::kUnsupported, "thread " + std::to_string(tid),
              "may use I/O ports (ioperm), which is not supported");
}

Result<void> set_options(int tid, unsigned long options) {
  if (do_ptrace(PTRACE_SETOPTIONS, tid, 0, options | PTRACE_O_TRACESYSGOOD) != 0)
    return ptrace_error(tid, "cannot set trace options");
  return {};
}

Result<unsigned long> event_message(int tid) {
  unsigned long message = 0;
  if (do_ptrace(PTRACE_GETEVENTMSG, tid, 0, pointer(&message)) != 0) return ptrace_error(tid, "cannot read the event");
  return message;
}

}  // namespace ckpt::proc
