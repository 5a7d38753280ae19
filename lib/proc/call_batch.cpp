#include "lib/proc/call_batch.h"

#include <signal.h>
#include <sys/syscall.h>

#include <string>

#include "lib/base/checked.h"
#include "lib/proc/parasite_code.h"
#include "lib/proc/remote_memory.h"
#include "lib/proc/signal_frame.h"

namespace ckpt::proc {

namespace {

constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

}  // namespace

size_t CallList::add(const char* what, long number, const Arguments& arguments, size_t room, unsigned in_room) {
  // Where it fails the next row follows: at the end of the code the thread would go on with its own business.
  calls_.push_back({what, {static_cast<uint32_t>(number), 1, arguments, 0}, in_room, rooms_.size(), room});
  rooms_.resize(rooms_.size() + align_up(room, size_t{8}));
  return calls_.size() - 1;
}

Result<uint64_t> CallList::value(size_t call) const {
  const int64_t got = result(call);
  if (is_error(got))
    return sys_error(static_cast<int>(-got), "the target", std::string("cannot ") + calls_[call].what);
  return static_cast<uint64_t>(got);
}

/// `rooms`: where the rooms of the list are in the process.
RemoteCall CallList::Call::with_room_at(uint64_t rooms) const {
  RemoteCall out = row;
  for (unsigned i = 0; i < out.args.size(); ++i) {
    if ((in_room >> i & 1) != 0) out.args[i] += rooms + room_at;
  }
  return out;
}

int CallBatch::choose_signal(uint64_t caught, uint64_t ignored, uint64_t pending) {
  // By default ignored; then what the process ignores, but for those that stop, go on, or are sent by a child's end.
  constexpr uint64_t kSpecial = bit(SIGCHLD) | bit(SIGCONT) | bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU);
  uint64_t usable = (bit(SIGURG) | bit(SIGWINCH) | (ignored & ~kSpecial)) & ~caught & ~pending;
  for (int signal : {SIGURG, SIGWINCH}) {
    if ((usable & bit(signal)) != 0) return signal;
  }
  for (int signal = 1; signal < 32; ++signal) {
    if ((usable & bit(signal)) != 0) return signal;
  }
  return 0;
}

CallBatch::~CallBatch() {
  tidy_up();
  held_.give_back(area_.pid());
}

/// What a failure leaves behind: threads that are on their way through their tables, or that wait for their registers.
void CallBatch::tidy_up() {
  for (Slot& slot : slots_) {
    if (slot.state == Slot::kRunning) (void)await(slot);
    if (slot.state == Slot::kAtEntry || slot.state == Slot::kThrough) (void)restore(slot);
  }
  slots_.clear();
}

Result<void> CallBatch::run(std::span<BatchedThread> threads) {
  for (size_t next = 0; signal_ != 0 && next < threads.size();) {
    std::vector<std::byte> image;
    for (uint64_t at = ParasiteArea::kFrameAt; next < threads.size() && lay_out(threads[next], at, image);) ++next;
    CKPT_ASSERT(!slots_.empty());
    CKPT_TRY(run_group(image));
  }
  for (size_t i = 0; signal_ == 0 && i < threads.size(); ++i) CKPT_TRY(run_one_by_one(threads[i]));
  // Nothing that somebody sent gets lost: it is for the process to ignore, or to find it pending.
  if (std::exchange(foreign_, false)) ::kill(area_.pid(), signal_);
  held_.give_back(area_.pid());
  return {};
}

/// Appends one thread's frame, table and rooms to `image`, the bytes from ParasiteArea::kFrameAt on. False: no room is
/// left.
bool CallBatch::lay_out(BatchedThread& thread, uint64_t& at, std::vector<std::byte>& image) {
  constexpr uint64_t kAlign = 64;
  Slot slot{&thread};
  slot.frame = at;
  const uint64_t base = raw(area_.start());
  std::vector<std::byte> frame = make_signal_frame(base + slot.frame, thread.regs, *thread.xstate, thread.mask);
  CallList& list = thread.calls;
  slot.table = align_up(slot.frame + frame.size(), kAlign);
  slot.rooms = slot.table + (list.calls_.size() + 1) * sizeof(RemoteCall);
  slot.end = align_up(slot.rooms + list.rooms_.size(), kAlign);
  if (slot.end > ParasiteArea::kSize) return false;
  image.resize(slot.end - ParasiteArea::kFrameAt);
  auto put = [&](uint64_t to, const void* from, size_t size) {
    std::memcpy(image.data() + (to - ParasiteArea::kFrameAt), from, size);
  };
  put(slot.frame, frame.data(), frame.size());
  uint64_t row_at = slot.table;
  for (const CallList::Call& call : list.calls_) {
    const RemoteCall row = call.with_room_at(base + slot.rooms);
    put(row_at, &row, sizeof row);
    row_at += sizeof row;
  }
  const auto own_pid = static_cast<uint64_t>(thread.own_pid != 0 ? thread.own_pid : area_.pid());
  const auto own_tid = static_cast<uint64_t>(thread.own_tid != 0 ? thread.own_tid : thread.tid);
  const RemoteCall last{SYS_tgkill, 1, {own_pid, own_tid, static_cast<uint64_t>(signal_)}, 0};
  put(row_at, &last, sizeof last);
  at = slot.end;
  slots_.push_back(slot);
  return true;
}

Result<void> CallBatch::run_group(const std::vector<std::byte>& image) {
  CKPT_TRY(write_memory(area_.pid(), area_.start() + ParasiteArea::kFrameAt, image));
  for (Slot& slot : slots_) CKPT_TRY(start(slot));
  for (Slot& slot : slots_) CKPT_TRY(await(slot));
  std::vector<std::byte> after(image.size());
  CKPT_TRY(read_memory(area_.pid(), area_.start() + ParasiteArea::kFrameAt, after));
  for (Slot& slot : slots_) {
    CKPT_TRY(restore(slot));
    CallList& list = slot.thread->calls;
    const std::byte* rows = after.data() + (slot.table - ParasiteArea::kFrameAt);
    for (size_t i = 0; i < list.calls_.size(); ++i) {
      RemoteCall row;
      std::memcpy(&row, rows + i * sizeof row, sizeof row);
      list.calls_[i].row.result = row.result;
    }
    if (!list.rooms_.empty())
      std::memcpy(list.rooms_.data(), after.data() + (slot.rooms - ParasiteArea::kFrameAt), list.rooms_.size());
  }
  slots_.clear();
  return {};
}

/// Registers before the mask: should ckpt die in between, the thread restores itself; the other way round it
/// would run on with all signals blocked.
Result<void> CallBatch::start(Slot& slot) {
  const int tid = slot.thread->tid;
  CKPT_TRY(refuse_dispatched_calls(tid));
  user_regs_struct regs =
      at_table(slot.thread->regs, raw(area_.start() + parasite::kTableAt), raw(area_.start() + slot.table),
               slot.thread->calls.calls_.size() + 1);
  regs.rsp = raw(area_.start() + slot.frame + sizeof(uint64_t));
  regs.rax = SYS_getpid;
  slot.state = Slot::kAtEntry;
  CKPT_TRY(set_registers(tid, regs));
  CKPT_TRY(set_signal_mask(tid, ~bit(signal_)));
  CKPT_TRY(resume(tid, Resume::kRun));
  slot.state = Slot::kRunning;
  return {};
}

Result<void> CallBatch::await(Slot& slot) {
  const int tid = slot.thread->tid;
  const uint64_t last_row = raw(area_.start() + slot.rooms) - sizeof(RemoteCall);
  for (;;) {
    auto stop = wait_stop(tid, kCallTimeoutUs);
    if (!stop) {
      slot.state = Slot::kGone;
      return std::move(stop).error();
    }
    switch (stop->kind) {
      case StopKind::kEnded:
        slot.state = Slot::kGone;
        return fail(Code::kNotFound, "thread " + std::to_string(tid), "has ended");
      case StopKind::kSignal: {
        if (stop->signal == SIGSTOP) {
          held_.take();
          break;
        }
        if (stop->signal != signal_) {
          slot.state = Slot::kThrough;
          return fail(Code::kTargetAltered, describe_pid(tid),
                      "got signal " + std::to_string(stop->signal) + " while it was borrowed");
        }
        auto regs = insist([&] { return get_registers(tid); });
        if (!regs) {
          slot.state = Slot::kThrough;
          return std::move(regs).error();
        }
        if (regs->rip == raw(area_.start() + parasite::kTableAt + kTableReturnAt) && regs->rbx == last_row) {
          slot.state = Slot::kThrough;
          return {};
        }
        foreign_ = true;
        break;
      }
      default: break;  // a stop request of somebody else: it stays in force once we let go
    }
    if (auto resumed = insist([&] { return resume(tid, Resume::kRun); }); !resumed) {
      slot.state = Slot::kGone;
      return std::move(resumed).error();
    }
  }
}

/// The mask first: as long as the registers are ours the thread restores itself.
Result<void> CallBatch::restore(Slot& slot) {
  slot.state = Slot::kGone;
  CKPT_TRY(insist([&] { return set_signal_mask(slot.thread->tid, slot.thread->mask); }));
  return insist([&] { return set_registers(slot.thread->tid, slot.thread->regs); });
}

Result<void> CallBatch::run_one_by_one(BatchedThread& thread) {
  CKPT_TRY_ASSIGN(BorrowedThread borrowed, BorrowedThread::begin(area_, thread.tid));
  CallList& list = thread.calls;
  for (CallList::Call& call : list.calls_) {
    std::span<std::byte> room(list.rooms_.data() + call.room_at, call.room_size);
    CKPT_ASSERT(room.size() <= ParasiteArea::kRoom);
    if (!room.empty()) CKPT_TRY(borrowed.put(room));
    const RemoteCall row = call.with_room_at(raw(area_.buffer()) - call.room_at);  // which holds this room alone
    CKPT_TRY_ASSIGN(call.row.result, borrowed.call(row.number, row.args));
    if (!room.empty()) CKPT_TRY(borrowed.get(room));
  }
  return borrowed.finish();
}

}  // namespace ckpt::proc
