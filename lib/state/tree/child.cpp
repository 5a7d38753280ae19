#include "lib/state/tree/child.h"

#include <fmt/format.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/proc/procfs.h"
#include "lib/proc/ptrace.h"
#include "lib/proc/seccomp.h"
#include "lib/state/tree/seed.h"

namespace ckpt::restore {

namespace {

constexpr int kInit = 1;
constexpr uint64_t kAllButTrap = ~(1ull << (SIGTRAP - 1));

/// What the child does until it is attached: nothing that needs more than system calls, for ckpt may have threads that
/// held a lock at the clone. It ends by itself if ckpt dies before the attachment does that.
[[noreturn]] void wait_to_be_seized(pid_t parent) {
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::syscall(SYS_getppid) != parent) ::syscall(SYS_exit_group, 1);
  for (;;) ::syscall(SYS_pause);
}

/// The same for a child of somebody else's, who may live on when ckpt ends.
[[noreturn]] void wait_for_ckpt(pid_t ckpt) {
  const timespec nap{0, 20'000'000};
  while (::syscall(SYS_kill, ckpt, 0) == 0) ::syscall(SYS_nanosleep, &nap, nullptr);
  ::syscall(SYS_exit_group, 1);
  __builtin_unreachable();
}

}  // namespace

std::string holder_of(int number) {
  if (auto status = proc::read_status(number, number)) {
    std::string out = proc::describe_pid(status->tgid);
    if (status->tgid != number) return out + fmt::format(", as thread {}", number);
    auto stat = proc::read_stat(number);
    if (stat && stat->state == 'Z') out += ", a zombie that " + proc::describe_pid(stat->parent) + " has not reaped";
    return out;
  }
  std::error_code ec;
  for (std::filesystem::directory_iterator it("/proc", ec), end; !ec && it != end; it.increment(ec)) {
    int pid = std::atoi(it->path().filename().c_str());
    if (pid <= 0) continue;
    auto stat = proc::read_stat(pid);
    if (!stat) continue;
    if (stat->session == number) return proc::describe_pid(pid) + ", whose session has that number";
    if (stat->group == number) return proc::describe_pid(pid) + ", whose process group has that number";
  }
  return "";
}

/// The kernel gives numbers out upwards from the last one.
Result<void> step_over_numbers(const store::TreeImage& tree) {
  constexpr const char* kLast = "/proc/sys/kernel/ns_last_pid";
  constexpr int kNeeded = 256;
  auto text = io::read_file(kLast, 64);
  if (!text) return {};  // a kernel without CONFIG_CHECKPOINT_RESTORE
  const int last = std::atoi(text->c_str());
  int next = last;
  for (const auto& process : tree.processes) {
    for (const auto& thread : process.threads) {
      if (thread.tid > last && thread.tid <= last + kNeeded) next = std::max(next, thread.tid);
    }
  }
  if (next != last) (void)io::write_file(kLast, std::to_string(next));
  return {};
}

namespace {

/// clone3 with the number asked for. In the parent: the pid, or -errno. The child waits to be seized. `as_sibling`: a
/// child of ckpt's parent, whom its end is told with the signal that ckpt's own would be.
long clone_with_pid(int pid, bool as_sibling = false) {
  pid_t set_tid[1] = {pid};
  clone_args args{};
  args.flags = CLONE_CLEAR_SIGHAND | (as_sibling ? CLONE_PARENT : 0);
  args.exit_signal = as_sibling ? 0 : SIGCHLD;
  args.set_tid = reinterpret_cast<uint64_t>(set_tid);
  args.set_tid_size = 1;
  auto parent = static_cast<pid_t>(::syscall(SYS_getpid));
  long got = ::syscall(SYS_clone3, &args, sizeof args);
  if (got == 0 && as_sibling) wait_for_ckpt(parent);
  if (got == 0) wait_to_be_seized(parent);
  return got < 0 ? -errno : got;
}

/// A process that makes the child in ckpt's stead, says in `result` how that went, and then only exists. It ignores
/// SIGCHLD, so that a child which fails is reaped without it.
pid_t start_stand_in(int pid, std::atomic<long>& result) {
  pid_t ckpt = ::getpid();
  pid_t stand_in = ::fork();
  if (stand_in != 0) return stand_in;
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::syscall(SYS_getppid) != ckpt) ::_exit(1);
  ::signal(SIGCHLD, SIG_IGN);
  result.store(clone_with_pid(pid));
  for (;;) ::pause();
}

void end_stand_in(int stand_in) {
  ::kill(stand_in, SIGKILL);
  while (::waitpid(stand_in, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Error creation_error(int pid, int err) {
  std::string subject = "process " + std::to_string(pid);
  if (err == EEXIST)
    return Error(Code::kBusy, subject, "its number is taken by " + holder_of(pid)).with_hint(kNumbersHint);
  if (err == EPERM) {
    return Error(Code::kPermission, subject, "choosing its number needs CAP_CHECKPOINT_RESTORE")
        .with_hint("run as root");
  }
  return fork_error(err, subject, "cannot be created");
}

}  // namespace

Result<HeldNumber> HeldNumber::hold(int number) {
  const long got = clone_with_pid(number);
  return got == number ? Result<HeldNumber>(HeldNumber(number)) : creation_error(number, static_cast<int>(-got));
}

void HeldNumber::free() {
  if (pid_ > 0) end_stand_in(std::exchange(pid_, -1));
}

namespace {

bool is_seed(int pid) { return pid == kInit && has_seed(); }

}  // namespace

Result<Child> Child::create(int pid, RestorerArea& area, Parent parent) {
  long got = 0;
  int stand_in = -1;
  if (is_seed(pid)) {
    CKPT_TRY(raise_seed(area));
    got = pid;
  } else if (parent != Parent::kStandIn) {
    got = clone_with_pid(pid, parent == Parent::kCallers);
  } else {
    std::byte* room = area.allocate(sizeof(std::atomic<long>));  // memory that the stand-in shares
    if (room == nullptr) return fail(Code::kBug, "", "the restorer area is too small");
    auto& result = *new (room) std::atomic<long>(0);
    stand_in = start_stand_in(pid, result);
    if (stand_in < 0) return fork_error(errno, "", "cannot make a process");
    while ((got = result.load()) == 0 && ::waitpid(stand_in, nullptr, WNOHANG) == 0) ::sched_yield();
  }
  if (got <= 0) {
    if (stand_in > 0) end_stand_in(stand_in);
    return creation_error(pid, got == 0 ? ECHILD : static_cast<int>(-got));
  }
  Child child({pid}, area);
  child.stand_in_ = stand_in;
  CKPT_TRY(child.attach());
  return child;
}

void Child::leave_parent() {
  if (stand_in_ > 0) end_stand_in(std::exchange(stand_in_, -1));
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      numbers_(std::move(other.numbers_)),
      area_(other.area_),
      threads_(std::move(other.threads_)),
      held_(std::move(other.held_)),
      stand_in_(std::exchange(other.stand_in_, -1)) {}

namespace {

/// Of a process that was sent SIGKILL. The leader can be reaped only when its other threads are gone, and those wait
/// for their tracer: all that there are, since a batch that failed half-way has made some that nobody has noted.
void reap_threads(int pid) {
  for (auto tids = proc::read_threads(pid); tids && tids->size() > 1; tids = proc::read_threads(pid)) {
    for (int tid : *tids) {
      if (tid != pid) (void)::waitpid(tid, nullptr, __WALL | WNOHANG);
    }
    ::usleep(100);
  }
}

}  // namespace

Child::~Child() {
  if (pid_ <= 0) return;
  if (pid_ == kInit) return;  // nobody inside may end it: the kernel does, with its tracer
  ::kill(pid_, SIGKILL);
  reap_threads(pid_);
  int status = 0;
  for (;;) {
    pid_t got = ::waitpid(pid_, &status, __WALL);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || WIFEXITED(status) || WIFSIGNALED(status)) break;
  }
  leave_parent();
}

Result<void> Child::attach() {
  // Scripts run on after filters are installed. Children and threads made with CLONE_PTRACE have the same options.
  CKPT_TRY(proc::seize(pid_, PTRACE_O_EXITKILL | proc::suspend_seccomp_option()));
  threads_.push_back(pid_);
  CKPT_TRY(proc::interrupt(pid_));
  CKPT_TRY(await_threads({pid_}));
  CKPT_TRY(proc::set_signal_mask(pid_, kAllButTrap));
  // The C library registered ckpt's rseq area, which the child inherits: once that memory is gone the kernel would kill
  // it.
  CKPT_TRY_ASSIGN(proc::RseqConfiguration rseq, proc::get_rseq(pid_));
  if (rseq.address == 0) return {};
  constexpr int kUnregister = 1;
  SyscallBatch batch;
  batch.add("leave ckpt's rseq registration", SYS_rseq, rseq.address, rseq.size, kUnregister, rseq.signature);
  return run(batch);
}

namespace {

/// As clone3 takes them: that of the innermost pid namespace first.
void choose(const Numbers& numbers, RestorerArea& area, clone_args& args) {
  if (numbers.all.empty()) return;
  std::vector<pid_t> list(numbers.all.rbegin(), numbers.all.rend());
  args.set_tid = area.put_bytes({reinterpret_cast<const std::byte*>(list.data()), list.size() * sizeof(pid_t)});
  args.set_tid_size = list.size();
}

}  // namespace

/// Of a child that it has by this number: all of the child's numbers.
Result<std::vector<int>> Child::find_child(int number) const {
  CKPT_TRY_ASSIGN(const std::vector<int> children, proc::read_children(pid_));
  for (const int child : children) {
    auto status = proc::read_status(child, child);
    if (status && status->ns_pids.size() >= numbers_.size() && status->ns_pids[numbers_.size() - 1] == number)
      return status->ns_pids;
  }
  return fail(Code::kNotFound, fmt::format("process {}", pid_), fmt::format("has no child {} any more", number));
}

Result<Child> Child::fork(const Numbers& numbers, uint64_t flags, int exit_signal) {
  clone_args args{};
  args.flags = flags | CLONE_PTRACE;
  args.exit_signal = static_cast<uint64_t>(exit_signal);
  choose(numbers, *area_, args);
  SyscallBatch batch;
  batch.add("create a process", SYS_clone3, area_->put(args), sizeof args);
  Result<void> made = run(batch);
  const int64_t result = batch.calls()[0].result;
  if (!made) {
    const int wanted = numbers.all.empty() || !numbers.whole ? 0 : numbers.all.front();
    return proc::is_error(result) ? creation_error(wanted, static_cast<int>(-result)) : std::move(made).error();
  }
  std::vector<int> all = numbers.all;
  if (all.empty() || !numbers.whole) {
    CKPT_TRY_ASSIGN(all, numbers_.size() == 1 ? Result<std::vector<int>>({static_cast<int>(result)})
                                              : find_child(static_cast<int>(result)));
  }
  Child child(std::move(all), *area_);
  child.threads_.push_back(child.pid_);
  child.held_ = held_;
  CKPT_TRY(child.await_threads({child.pid_}));
  return child;
}

Result<void> Child::enter_pid_namespace(int member) {
  SyscallBatch open;
  open.add("open a pidfd", SYS_pidfd_open, member, 0);
  CKPT_TRY(run(open));
  const int64_t handle = open.calls()[0].result;
  SyscallBatch enter;
  enter.add("enter a pid namespace", SYS_setns, handle, CLONE_NEWPID);
  enter.add("close a pidfd", SYS_close, handle);
  return run(enter);
}

namespace {

Result<void> expect_stop(int tid, proc::StopKind kind) {
  CKPT_TRY_ASSIGN(proc::Stop stop, proc::wait_stop(tid));
  if (stop.kind == kind) return {};
  return fail(Code::kBug, "thread " + std::to_string(tid),
              fmt::format("stopped with {:#x} while it was stopped", stop.status));
}

}  // namespace

/// The first thread takes `signal`, whose action was the default one when the process was stopped by it. False: the
/// kernel ignores it. An interrupt is waiting meanwhile, so that the thread does not run then.
Result<bool> Child::enter_stop(int signal) {
  if (::kill(pid_, SIGSTOP) != 0) return sys_error(fmt::format("process {}", pid_), "cannot be stopped");
  CKPT_TRY(proc::resume(pid_, proc::Resume::kRun));
  CKPT_TRY(expect_stop(pid_, proc::StopKind::kSignal));
  CKPT_TRY(proc::interrupt(pid_));
  CKPT_TRY(proc::resume(pid_, proc::Resume::kRun, signal));
  CKPT_TRY_ASSIGN(proc::Stop stop, proc::wait_stop(pid_));
  if (stop.kind == proc::StopKind::kTrap) return false;
  if (stop.kind == proc::StopKind::kGroupStop) return true;
  return fail(Code::kBug, "thread " + std::to_string(pid_),
              fmt::format("stopped with {:#x} while it was stopped", stop.status));
}

Result<void> Child::stop_as_by_signal(int signal, bool go_on) {
  constexpr auto bit = [](int number) { return uint64_t{1} << (number - 1); };
  // What waits for the process is for it to take once it runs.
  CKPT_TRY_ASSIGN(const uint64_t mask, proc::get_signal_mask(pid_));
  CKPT_TRY(proc::set_signal_mask(pid_, ~(bit(signal) | bit(SIGCONT))));
  CKPT_TRY_ASSIGN(bool stopped, enter_stop(signal));
  if (!stopped) {
    CKPT_TRY_ASSIGN(stopped, enter_stop(SIGSTOP));
  }
  if (!stopped) return fail(Code::kBug, fmt::format("process {}", pid_), "cannot be stopped");
  for (int tid : threads_) {
    if (tid == pid_) continue;
    CKPT_TRY(proc::resume(tid, proc::Resume::kRun));
    CKPT_TRY(expect_stop(tid, proc::StopKind::kGroupStop));
  }
  if (!go_on) return proc::set_signal_mask(pid_, mask);
  if (::kill(pid_, SIGCONT) != 0) return sys_error(fmt::format("process {}", pid_), "cannot be continued");
  // The signal itself is not for the process: it is left undelivered in this stop.
  CKPT_TRY(proc::resume(pid_, proc::Resume::kRun));
  for (;;) {
    CKPT_TRY_ASSIGN(proc::Stop stop, proc::wait_stop(pid_));
    if (stop.kind == proc::StopKind::kSignal && stop.signal == SIGCONT) return proc::set_signal_mask(pid_, mask);
    if (stop.kind != proc::StopKind::kTrap)
      return fail(Code::kBug, fmt::format("process {}", pid_),
                  fmt::format("stopped with {:#x} while it was continued", stop.status));
    CKPT_TRY(proc::resume(pid_, proc::Resume::kRun));
  }
}

Result<int> Child::parent() const {
  CKPT_TRY_ASSIGN(proc::Stat stat, proc::read_stat(pid_));
  return stat.parent;
}

Result<void> Child::end(int status) {
  SyscallBatch batch;
  if (WIFEXITED(status)) {
    batch.add("end", SYS_exit_group, WEXITSTATUS(status));
  } else {
    const int signal = WTERMSIG(status);
    constexpr int kUnblock = 1, kSetSize = 8, kCoreLimit = 4;
    batch.add("leave no core", SYS_prlimit64, 0, kCoreLimit, area_->put(std::array<uint64_t, 2>{0, 0}), 0);
    batch.add("let a signal through", SYS_rt_sigprocmask, kUnblock, area_->put(uint64_t{1} << (signal - 1)), 0,
              kSetSize);
    batch.add("end by a signal", SYS_kill, numbers_.back(), signal);
  }
  CKPT_TRY(start(pid_, batch));
  for (;;) {
    CKPT_TRY_ASSIGN(proc::Stop stop, proc::wait_stop(pid_));
    if (stop.kind == proc::StopKind::kEnded) break;
    CKPT_TRY(proc::resume(pid_, proc::Resume::kRun, stop.kind == proc::StopKind::kSignal ? stop.signal : 0));
  }
  pid_ = -1;
  return {};
}

Result<void> Child::await_threads(const std::vector<int>& tids) {
  for (int tid : tids) {
    CKPT_TRY_ASSIGN(proc::Stop stop, proc::wait_stop(tid));
    if (stop.kind != proc::StopKind::kTrap) {
      return fail(Code::kBug, "thread " + std::to_string(tid),
                  fmt::format("stopped with {:#x} at its start", stop.status));
    }
    if (tid != pid_) threads_.push_back(tid);
  }
  return {};
}

Result<void> Child::end_thread(int tid) {
  SyscallBatch batch;
  batch.add("end a thread", SYS_exit, 0);
  CKPT_TRY(start(tid, batch));
  std::erase(threads_, tid);
  for (;;) {
    CKPT_TRY_ASSIGN(proc::Stop stop, proc::wait_stop(tid));
    if (stop.kind == proc::StopKind::kEnded) return {};
    CKPT_TRY(proc::resume(tid, proc::Resume::kRun, stop.kind == proc::StopKind::kSignal ? stop.signal : 0));
  }
}

void Child::add_thread(SyscallBatch& batch, const Numbers& numbers) {
  clone_args args{};
  // CLONE_PTRACE attaches it with the leader's options, and spares the leader a stop for every thread it makes.
  args.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PTRACE;
  choose(numbers, *area_, args);
  batch.add("create a thread", SYS_clone3, area_->put(args), sizeof args);
}

Result<const Call*> Child::start(int tid, const SyscallBatch& batch) {
  auto* table = reinterpret_cast<Call*>(area_->allocate(batch.size() * sizeof(Call)));
  if (area_->overflowed())
    return fail(Code::kNoRoom, "process " + std::to_string(pid_), "its description is too large to rebuild");
  std::memcpy(table, batch.calls().data(), batch.size() * sizeof(Call));
  CKPT_TRY_ASSIGN(user_regs_struct regs, proc::get_registers(tid));
  regs = proc::at_table(regs, area_->table_code(), reinterpret_cast<uint64_t>(table), batch.size());
  regs.rsp = 0;  // on no alternate stack, whatever it was before
  CKPT_TRY(proc::set_registers(tid, regs));
  CKPT_TRY(proc::resume(tid, proc::Resume::kRun));
  return table;
}

Result<void> Child::finish(int tid, SyscallBatch& batch, const Call* table) {
  CKPT_TRY_ASSIGN(proc::Stop stop, proc::wait_stop(tid));
  CKPT_TRY_ASSIGN(user_regs_struct regs, proc::get_registers(tid));
  batch.set_results(table);
  const size_t done = proc::calls_made(regs, reinterpret_cast<uint64_t>(table));
  if (stop.kind != proc::StopKind::kSignal || stop.signal != SIGTRAP || done > batch.size()) {
    return fail(Code::kBug, "thread " + std::to_string(tid),
                fmt::format("stopped with {:#x} at {:#x} while it was built", stop.status, regs.rip));
  }
  if (done == 0) return {};
  const Call& last = batch.calls()[done - 1];
  if (!proc::is_error(last.result) || last.may_fail != 0) return {};
  Error error = batch.failure(done - 1);
  error.subject = fmt::format("process {}", tid);
  return error;
}

Result<void> Child::run(int tid, SyscallBatch& batch) {
  if (batch.empty()) return {};
  CKPT_TRY_ASSIGN(const Call* table, start(tid, batch));
  return finish(tid, batch, table);
}

Result<void> Child::run_all(const std::vector<Task>& tasks) {
  std::vector<const Call*> tables;
  for (const Task& task : tasks) {
    CKPT_TRY_ASSIGN(const Call* table, start(task.tid, *task.batch));
    tables.push_back(table);
  }
  Result<void> first;
  for (size_t i = 0; i < tasks.size(); ++i) {
    Result<void> result = finish(tasks[i].tid, *tasks[i].batch, tables[i]);
    if (first && !result) first = std::move(result);
  }
  return first;
}

Result<int64_t> Child::call_once(int tid, uint64_t instruction, const Call& call) {
  CKPT_TRY_ASSIGN(user_regs_struct regs, proc::get_registers(tid));
  CKPT_TRY(proc::set_registers(tid, proc::at_call(regs, instruction, call.number, call.args)));
  CKPT_TRY(proc::resume(tid, proc::Resume::kToSyscall));
  CKPT_TRY_ASSIGN(proc::Stop entry, proc::wait_stop(tid));
  // The interrupt is pending while the call runs: a sleep ends at once, and the thread stops on its way out.
  CKPT_TRY(proc::interrupt(tid));
  CKPT_TRY(proc::resume(tid, proc::Resume::kRun));
  CKPT_TRY_ASSIGN(proc::Stop out, proc::wait_stop(tid));
  if (entry.kind != proc::StopKind::kSyscall || out.kind != proc::StopKind::kTrap) {
    return fail(Code::kBug, "thread " + std::to_string(tid),
                fmt::format("stopped with {:#x}, {:#x} around a call", entry.status, out.status));
  }
  CKPT_TRY_ASSIGN(regs, proc::get_registers(tid));
  return static_cast<int64_t>(regs.rax);
}

Result<void> Child::run_code(int tid, uint64_t code, uint64_t argument) {
  CKPT_TRY_ASSIGN(user_regs_struct regs, proc::get_registers(tid));
  regs.rip = code, regs.rbx = argument;
  regs.orig_rax = ~0ull;  // not in a system call: nothing to restart
  CKPT_TRY(proc::set_registers(tid, regs));
  CKPT_TRY(proc::resume(tid, proc::Resume::kRun));
  CKPT_TRY_ASSIGN(proc::Stop stop, proc::wait_stop(tid));
  if (stop.kind == proc::StopKind::kSignal && stop.signal == SIGTRAP) return {};
  return fail(Code::kUnsupported, "thread " + std::to_string(tid), fmt::format("stopped with signal {}", stop.signal));
}

Result<void> Child::release() {
  // From the first detach on the process runs and may end at any moment: a thread that is gone by then is no failure.
  Result<void> first;
  for (int tid : threads_) {
    Result<void> result = proc::detach(tid);
    if (!result && result.error().code != Code::kNotFound && first) first = std::move(result);
  }
  if (first) pid_ = -1;
  return first;
}

}  // namespace ckpt::restore
