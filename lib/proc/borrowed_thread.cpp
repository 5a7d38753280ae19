#include "lib/proc/borrowed_thread.h"

#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <span>

#include "lib/proc/procfs.h"
#include "lib/proc/remote_memory.h"
#include "lib/proc/parasite_code.h"
#include "lib/proc/seccomp.h"
#include "lib/proc/signal_frame.h"
#include "lib/proc/userfault.h"

namespace ckpt::proc {

namespace {

static_assert(parasite::kCode.size() < ParasiteArea::kFrameAt);

using namespace std::string_view_literals;
constexpr std::string_view kSyscall = "\x0f\x05"sv, kReturning = "\x0f\x05\xc3"sv;
constexpr std::string_view kSigreturn = "\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"sv;

}  // namespace

bool still_hold(int pid, const Gadgets& gadgets) {
  auto holds = [pid](RemoteAddress at, std::string_view bytes) {
    std::byte found[16];
    MutableByteSpan code(found, bytes.size());
    return raw(at) == 0 || (read_memory(pid, at, code) && as_text(code) == bytes);
  };
  return raw(gadgets.syscall) != 0 && holds(gadgets.syscall, kSyscall) && holds(gadgets.returning, kReturning) &&
         holds(gadgets.sigreturn, kSigreturn);
}

namespace {

/// Where the pieces lie in what a file's mapping begins with; a part that is not there is at kNowhere.
struct GadgetOffsets {
  static constexpr size_t kNowhere = std::string_view::npos;
  size_t syscall = kNowhere, returning = kNowhere, sigreturn = kNowhere;

  bool all() const { return syscall != kNowhere && returning != kNowhere && sigreturn != kNowhere; }
  /// `text` lies at `at`.
  void search_in(std::string_view text, size_t at) {
    auto search_for = [&](std::string_view piece, size_t& to) {
      if (const size_t found = to == kNowhere ? text.find(piece) : kNowhere; found != kNowhere) to = at + found;
    };
    search_for(kSyscall, syscall), search_for(kReturning, returning), search_for(kSigreturn, sigreturn);
  }
};

/// Fills what is still missing of `out`.
void add_gadgets(const GadgetOffsets& offsets, const Vma& vma, Gadgets& out) {
  auto add = [&](size_t at, RemoteAddress& to) {
    if (raw(to) == 0 && at != GadgetOffsets::kNowhere) to = RemoteAddress(vma.start + at);
  };
  add(offsets.syscall, out.syscall), add(offsets.returning, out.returning), add(offsets.sigreturn, out.sigreturn);
}

/// The processes of a tree map the same libraries: each file is searched once (0.4 ms for a libc). What another process
/// has is believed only where this one has the same bytes, see `still_hold`.
class GadgetSearch {
 public:
  explicit GadgetSearch(int pid) : pid_(pid) {}

  void search_in(const Vma& vma, Gadgets& out) {
    const Key key{vma.device, vma.inode, vma.offset, vma.end - vma.start};
    auto known = vma.inode != 0 ? cache_.find(key) : cache_.end();
    if (known != cache_.end()) {
      Gadgets told = out;
      add_gadgets(known->second, vma, told);
      if (still_hold(pid_, told)) return void(out = told);
    }
    const std::optional<GadgetOffsets> found = search(vma);
    if (!found) return;
    add_gadgets(*found, vma, out);
    if (vma.inode != 0) cache_.insert_or_assign(key, *found);
  }

 private:
  /// Piece by piece up to the last that is missing: a libc has it in its first 256 KiB, and 1.4 MiB would be fresh
  /// memory.
  std::optional<GadgetOffsets> search(const Vma& vma) {
    constexpr uint64_t kMost = 4 << 20, kPiece = 64 << 10;
    constexpr uint64_t kOverlap = kSigreturn.size() - 1;  // the longest may lie across a border
    const uint64_t size = std::min(vma.end - vma.start, kMost);
    GadgetOffsets found;
    for (uint64_t at = 0; at < size && !found.all(); at += kPiece) {
      code_.resize(std::min(size - at, kPiece + kOverlap));
      if (!read_memory(pid_, RemoteAddress(vma.start + at), code_)) return std::nullopt;
      found.search_in(as_text(code_), at);
    }
    return found;
  }

  using Key = std::array<uint64_t, 4>;
  static inline thread_local std::map<Key, GadgetOffsets> cache_;
  int pid_;
  std::vector<std::byte> code_;
};

}  // namespace

Result<Gadgets> find_gadgets(int pid, const std::vector<Vma>& maps) {
  std::vector<const Vma*> candidates;
  for (const Vma& vma : maps) {
    if ((vma.prot & PROT_EXEC) != 0 && (vma.prot & PROT_READ) != 0 && vma.name != "[vsyscall]")
      candidates.push_back(&vma);
  }
  auto rank = [](const Vma* vma) {
    return vma->name == "[vdso]" ? 0 : vma->name.find("/libc") != std::string::npos ? 1 : 2;
  };
  std::stable_sort(candidates.begin(), candidates.end(), [&](const Vma* a, const Vma* b) { return rank(a) < rank(b); });
  Gadgets out;
  GadgetSearch search(pid);
  auto stack = std::find_if(maps.begin(), maps.end(), [](const Vma& vma) { return vma.name == "[stack]"; });
  if (stack != maps.end()) out.stack_low = RemoteAddress(stack->start), out.stack_high = RemoteAddress(stack->end);
  for (const Vma* vma : candidates) {
    if (raw(out.syscall) != 0 && raw(out.returning) != 0 && raw(out.sigreturn) != 0) break;
    search.search_in(*vma, out);
  }
  if (raw(out.syscall) == 0 && has_ended(pid)) return fail(Code::kNotFound, describe_pid(pid), "has ended");
  if (raw(out.syscall) == 0)
    return fail(Code::kUnsupported, describe_pid(pid), "has no system call instruction that ckpt could borrow");
  return out;
}

Result<ParasiteArea> ParasiteArea::map(int pid, int tid, const Gadgets& gadgets) {
  ParasiteArea out(pid, tid, gadgets);
  constexpr uint64_t kProtection = PROT_READ | PROT_WRITE | PROT_EXEC, kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  CKPT_TRY_ASSIGN(int64_t at,
                  BorrowedThread::lone_call(out, SYS_mmap, {kParasiteAddress, kSize, kProtection, kFlags, ~0ull, 0}));
  if (at == -EACCES || at == -EPERM) {
    return fail(Code::kUnsupported, describe_pid(pid),
                "may not have memory that is written and executed (PR_SET_MDWE, SELinux's execmem), which ckpt needs "
                "in it for a moment");
  }
  if (at < 0) return sys_error(static_cast<int>(-at), describe_pid(pid), "cannot make a scratch mapping in it");
  out.start_ = RemoteAddress(static_cast<uint64_t>(at));
  CKPT_TRY(write_memory(pid, out.start_, std::as_bytes(std::span(parasite::kCode))));
  return out;
}

bool is_parasite(int pid, RemoteAddress at) {
  auto found = parasite::kCode;
  return read_memory(pid, at, std::as_writable_bytes(std::span(found))) && found == parasite::kCode;
}

ParasiteArea::ParasiteArea(ParasiteArea&& other) noexcept
    : pid_(other.pid_),
      tid_(other.tid_),
      gadgets_(other.gadgets_),
      start_(std::exchange(other.start_, RemoteAddress(0))) {}

ParasiteArea::~ParasiteArea() { (void)unmap(); }

Result<void> ParasiteArea::unmap() {
  RemoteAddress start = std::exchange(start_, RemoteAddress(0));
  if (raw(start) == 0) return {};
  CKPT_TRY_ASSIGN(int64_t result, insist([&] {
                    return BorrowedThread::lone_call(*this, SYS_munmap, {raw(start), kSize});
                  }));
  if (result < 0) return sys_error(static_cast<int>(-result), describe_pid(pid_), "cannot remove the scratch mapping");
  return {};
}

/// Below the red zone of the stack, where the kernel puts a signal's frame; 0: no place for it.
Result<uint64_t> BorrowedThread::place_of_guard_frame(const Gadgets& gadgets, uint64_t size) const {
  constexpr uint64_t kRedZone = 128, kAlign = 64;
  const uint64_t needed = kRedZone + size + kAlign;
  uint64_t low = raw(gadgets.stack_low), high = raw(gadgets.stack_high);
  const auto is_within = [&](uint64_t room) { return low + room <= regs_.rsp && regs_.rsp < high; };
  if (!is_within(needed)) {  // has it grown, or is this another stack?
    CKPT_TRY_ASSIGN(std::vector<Vma> maps, read_maps(area_->pid(), false));
    auto stack = std::find_if(maps.begin(), maps.end(), [](const Vma& vma) { return vma.name == "[stack]"; });
    if (stack == maps.end()) return uint64_t{0};
    low = stack->start, high = stack->end;
  }
  if (is_within(needed)) return (regs_.rsp - kRedZone - size) & ~(kAlign - 1);
  return is_within(0) || high - low < needed ? 0 : low;
}

/// Puts the guard frame on the stack. False: there is no place for it.
Result<bool> BorrowedThread::lay_guard_frame(const Gadgets& gadgets) {
  if (raw(gadgets.returning) == 0 || raw(gadgets.sigreturn) == 0) return false;
  CKPT_TRY_ASSIGN(std::vector<std::byte> xstate, get_xstate(tid_));
  const size_t size = make_signal_frame(0, regs_, xstate, mask_).size();
  CKPT_TRY_ASSIGN(const uint64_t place, place_of_guard_frame(gadgets, size));
  if (place == 0) return false;
  std::vector<std::byte> frame = make_signal_frame(place, regs_, xstate, mask_);
  uint64_t restorer = raw(gadgets.sigreturn);
  std::memcpy(frame.data(), &restorer, sizeof restorer);
  under_guard_.resize(frame.size());
  if (!read_memory(area_->pid(), RemoteAddress(place), under_guard_)) return false;
  if (!write_memory(area_->pid(), RemoteAddress(place), frame)) return false;
  guard_ = RemoteAddress(place);
  return true;
}

Result<int64_t> BorrowedThread::lone_call(const ParasiteArea& area, long number, const Arguments& arguments) {
  const Gadgets& gadgets = area.gadgets_;
  CKPT_TRY(refuse_dispatched_calls(area.tid_));
  BorrowedThread thread(area, area.tid_);
  CKPT_TRY_ASSIGN(thread.regs_, get_registers(thread.tid_));
  CKPT_TRY_ASSIGN(thread.mask_, get_signal_mask(thread.tid_));
  CKPT_TRY_ASSIGN(bool safe, thread.lay_guard_frame(gadgets));
  RemoteAddress instruction = safe ? gadgets.returning : gadgets.syscall;
  RemoteAddress stack = safe ? thread.guard_ : RemoteAddress(thread.regs_.rsp);
  thread.active_ = true;
  CKPT_TRY(thread.set_entry(instruction, stack));
  CKPT_TRY_ASSIGN(int64_t result, thread.run(instruction, stack, number, arguments, nullptr));
  CKPT_TRY(thread.finish());
  return result;
}

/// Registers first: should ckpt die after the mask was set, the thread restores itself; the other way round it would
/// run on with all signals blocked.
Result<void> BorrowedThread::set_entry(RemoteAddress instruction, RemoteAddress stack) {
  user_regs_struct entry = regs_;
  entry.rip = raw(instruction), entry.rsp = raw(stack), entry.rax = SYS_getpid;
  entry.orig_rax = ~0ull;
  CKPT_TRY(set_registers(tid_, entry));
  return set_signal_mask(tid_, ~0ull);
}

void HeldStop::give_back(int pid) {
  if (!std::exchange(taken_, false)) return;
  auto status = read_status(pid, pid);
  constexpr uint64_t kContinue = uint64_t{1} << (SIGCONT - 1);
  if (!status || ((status->pending_private | status->pending_shared) & kContinue) == 0) ::kill(pid, SIGSTOP);
}

Result<BorrowedThread> BorrowedThread::begin(const ParasiteArea& area, int tid) {
  CKPT_TRY(refuse_dispatched_calls(tid));
  BorrowedThread out(area, tid);
  CKPT_TRY_ASSIGN(out.regs_, get_registers(tid));
  CKPT_TRY_ASSIGN(out.mask_, get_signal_mask(tid));
  CKPT_TRY_ASSIGN(std::vector<std::byte> xstate, get_xstate(tid));
  RemoteAddress frame = area.start() + ParasiteArea::kFrameAt;
  std::vector<std::byte> bytes = make_signal_frame(raw(frame), out.regs_, xstate, out.mask_);
  CKPT_ASSERT(bytes.size() <= ParasiteArea::kBufferAt - ParasiteArea::kFrameAt);
  CKPT_TRY(write_memory(area.pid(), frame, bytes));
  out.active_ = true;
  CKPT_TRY(out.set_entry(area.start(), frame + sizeof(uint64_t)));
  return out;
}

BorrowedThread::BorrowedThread(BorrowedThread&& other) noexcept
    : area_(other.area_), tid_(other.tid_), active_(std::exchange(other.active_, false)),
      held_(std::exchange(other.held_, {})), regs_(other.regs_), mask_(other.mask_),
      guard_(other.guard_), under_guard_(std::move(other.under_guard_)) {}

BorrowedThread::~BorrowedThread() { (void)finish(); }

Result<void> BorrowedThread::finish() {
  if (!std::exchange(active_, false)) return {};
  held_.give_back(area_->pid());
  auto mask_set = insist([&] { return set_signal_mask(tid_, mask_); });
  // An interrupted system call's -ERESTART* is still in rax; a release makes the kernel look at it, because letting go
  // of a stopped thread marks it as signalled (__ptrace_unlink).
  CKPT_TRY(insist([&] { return set_registers(tid_, regs_); }));
  // Below the red zone nothing is anybody's, a signal handler writes there, too: where this fails nothing is lost, and
  // the call that was made must not be: the mapping it may have made would stay.
  if (raw(guard_) != 0) (void)write_memory(area_->pid(), guard_, under_guard_);
  return mask_set;
}

Result<void> BorrowedThread::step(Stop& stop) {
  for (;;) {
    CKPT_TRY(insist([&] { return resume(tid_, Resume::kToSyscall); }));
    CKPT_TRY_ASSIGN(stop, wait_stop(tid_, kCallTimeoutUs));
    switch (stop.kind) {
      case StopKind::kSyscall:
      case StopKind::kEvent: return {};
      case StopKind::kEnded:
        active_ = false;
        return fail(Code::kNotFound, "thread " + std::to_string(tid_), "has ended");
      case StopKind::kTrap:
      case StopKind::kGroupStop: break;  // a stop request of somebody else: it stays in force once we let go
      case StopKind::kSignal:
        if (stop.signal == SIGSTOP) {
          held_.take();
          break;
        }
        return fail(Code::kTargetAltered, describe_pid(tid_),
                    "got signal " + std::to_string(stop.signal) + " while it was borrowed");
    }
  }
}

Result<int64_t> BorrowedThread::run(RemoteAddress instruction, RemoteAddress stack, long number,
                                    const Arguments& arguments, int* child) {
  user_regs_struct regs = at_call(regs_, raw(instruction), static_cast<uint64_t>(number), arguments);
  regs.rsp = raw(stack);
  CKPT_TRY(insist([&] { return set_registers(tid_, regs); }));
  Stop stop;
  CKPT_TRY(step(stop));  // entry
  CKPT_TRY(step(stop));  // exit, or the clone event before it
  if (stop.kind == StopKind::kEvent) {
    CKPT_TRY_ASSIGN(unsigned long message, insist([&] { return event_message(tid_); }));
    if (child != nullptr) *child = static_cast<int>(message);
    CKPT_TRY(step(stop));
  }
  CKPT_TRY_ASSIGN(user_regs_struct after,
                  insist([&] { return get_registers(tid_); }));  // who does not know what was made cannot remove it
  return static_cast<int64_t>(after.rax);
}

/// By the code at this offset of the parasite area.
Result<int64_t> BorrowedThread::run(uint64_t code, long number, const Arguments& arguments, int* child) {
  return run(area_->start() + code, area_->start() + ParasiteArea::kFrameAt + sizeof(uint64_t), number, arguments,
             child);
}

Result<int64_t> BorrowedThread::call(long number, const Arguments& arguments) {
  return run(parasite::kCallAt, number, arguments, nullptr);
}

Result<uint64_t> BorrowedThread::call_ok(const char* what, long number, const Arguments& arguments) {
  CKPT_TRY_ASSIGN(int64_t result, call(number, arguments));
  if (is_error(result))
    return sys_error(static_cast<int>(-result), describe_pid(tid_), std::string("cannot ") + what);
  return static_cast<uint64_t>(result);
}

Result<UniqueFd> BorrowedThread::take_new_fd(const char* what, int pidfd, long number, const Arguments& arguments) {
  CKPT_TRY_ASSIGN(int64_t remote, run(parasite::kOpenAt, number, arguments, nullptr));
  if (remote < 0) return sys_error(static_cast<int>(-remote), describe_pid(tid_), std::string("cannot ") + what);
  auto fd = get_remote_fd(pidfd, static_cast<int>(remote));
  CKPT_TRY(call_ok("close what was taken out of it", SYS_close, {static_cast<uint64_t>(remote)}));
  return fd;
}

Result<RemoteAddress> BorrowedThread::put(ByteSpan data) {
  CKPT_ASSERT(data.size() <= ParasiteArea::kRoom);
  CKPT_TRY(write_memory(area_->pid(), area_->buffer(), data));
  return area_->buffer();
}

Result<void> BorrowedThread::get(MutableByteSpan out) { return read_memory(area_->pid(), area_->buffer(), out); }

Result<int> BorrowedThread::fork_frozen() {
  const unsigned long usual = suspend_seccomp_option();
  CKPT_TRY(set_options(tid_, PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | usual));
  int child = 0;
  auto result = run(parasite::kForkAt, SYS_clone, {}, &child);
  CKPT_TRY(set_options(tid_, usual));
  if (!result) return std::move(result).error();
  if (*result < 0) return sys_error(static_cast<int>(-*result), describe_pid(tid_), "cannot fork a snapshot of it");
  CKPT_ASSERT(child == *result || child != 0);
  CKPT_TRY_ASSIGN(Stop stop, wait_stop(child, kCallTimeoutUs));
  if (stop.kind == StopKind::kEnded) return fail(Code::kIo, describe_pid(tid_), "its snapshot ended at once");
  CKPT_TRY(set_options(child, PTRACE_O_EXITKILL));
  return child;
}

}  // namespace ckpt::proc
