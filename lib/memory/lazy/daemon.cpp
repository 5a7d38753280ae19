#include "lib/memory/lazy/daemon.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <new>

#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/threads.h"
#include "lib/base/virtual_file.h"
#include "lib/memory/lazy/guard.h"
#include "lib/memory/lazy/service.h"
#include "lib/proc/userfault.h"

namespace ckpt::restore {

namespace {

/// What the restored processes have open must not stay open here.
void close_all_but(std::vector<int> keep) {
  std::sort(keep.begin(), keep.end());
  unsigned from = 3;
  for (int fd : keep) {
    if (fd < static_cast<int>(from)) continue;
    if (static_cast<unsigned>(fd) > from) io::close_descriptors(from, static_cast<unsigned>(fd) - 1);
    from = static_cast<unsigned>(fd) + 1;
  }
  io::close_descriptors(from);
}

void become_a_process_of_its_own(const std::vector<int>& keep) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Out of reach of what is sent to ckpt's group.
  ::setpgid(0, 0);
  (void)!::chdir("/");
  ::prctl(PR_SET_NAME, "ckpt-lazy", 0, 0, 0);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, fd);
  close_all_but(keep);
  // Its end would be the process's, too, or worse.
  (void)io::write_file("/proc/self/oom_score_adj", "-1000");
}

void add_memory(LazyPagesService& service, const store::ImageReader& image, PagedMemory& paged) {
  auto memory =
      std::make_unique<LazyPagesMemory>(image, std::move(paged.userfault), paged.can_poison, paged.pid, paged.space);
  const uint64_t base = store::space_base(paged.space);
  for (const Range& range : paged.ranges) memory->add(range.first, base + range.first, range.second - range.first);
  std::vector<uint64_t> hot;
  for (uint64_t address : paged.hot) hot.push_back(base + address);
  service.add(std::move(memory), std::move(hot));
}

struct Answer {
  Code code;
  bool may_run;
  char text[1000];
};

void answer(int ready, const Result<void>& may_run) {
  Answer out{};
  out.may_run = may_run.has_value();
  if (!may_run) {
    out.code = may_run.error().code;
    const std::string text = may_run.error().text();
    text.copy(out.text, sizeof out.text - 1);
  }
  (void)!::write(ready, &out, sizeof out);
  ::close(ready);
}

[[noreturn]] void run_daemon(store::ImageReader& image, std::vector<PagedMemory>& memories, const LazyPagesLog& log,
                             int ready, int go) {
  std::vector<int> keep = image.descriptors();
  for (const PagedMemory& memory : memories) keep.push_back(memory.userfault.get());
  keep.push_back(log.descriptor());
  keep.push_back(ready);
  keep.push_back(go);
  if (io::needed_descriptor() >= 0) keep.push_back(io::needed_descriptor());
  become_a_process_of_its_own(keep);
  void* shared = ::mmap(nullptr, sizeof(LazyPagesState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) ::_exit(1);
  auto& state = *new (shared) LazyPagesState;
  state.poison =
      std::all_of(memories.begin(), memories.end(), [](const PagedMemory& memory) { return memory.can_poison; });
  auto guardian = start_guardian(state, log);
  if (!guardian) {
    answer(ready, guardian.error());
    ::_exit(1);
  }
  LazyPagesService service(image, log, state);
  for (PagedMemory& memory : memories) add_memory(service, image, memory);
  if (auto threads = service.start_threads(); !threads) {
    answer(ready, threads);
    state.finished = 1;
    ::_exit(1);
  }
  service.run(std::move(*guardian), UniqueFd(go), [ready](const Result<void>& may_run) { answer(ready, may_run); });
  if (log.fate() != nullptr) log.fate()->finished.store(1, std::memory_order_release);
  state.finished = 1;
  ::_exit(0);
}

}  // namespace

Result<LazyPagesDaemon> LazyPagesDaemon::start(store::ImageReader& image, std::vector<PagedMemory> memories,
                                               LazyPagesLog log) {
  CKPT_TRY_ASSIGN(PipeEnds up, make_pipe());
  CKPT_TRY_ASSIGN(PipeEnds down, make_pipe());
  LazyPagesDaemon out;
  out.ready_ = std::move(up.read), out.go_ = std::move(down.write);
  if (log.fate() != nullptr) log.fate()->begun.store(1, std::memory_order_release);
  out.pid_ = ::fork();
  if (out.pid_ < 0) return fork_error(errno, "", "cannot make the lazy-pages daemon");
  if (out.pid_ == 0) run_daemon(image, memories, log, up.write.get(), down.read.get());
  return out;
}

Result<void> LazyPagesDaemon::await() {
  // One that has ended has left its answer.
  if (::write(go_.get(), "", 1) != 1 && errno != EPIPE)
    return sys_error("the lazy-pages daemon", "cannot be told to begin");
  CKPT_TRY_ASSIGN(UniqueFd end, proc::open_pidfd(pid_));
  pollfd polled[] = {{ready_.get(), POLLIN, 0},
                     {end.get(), POLLIN, 0}};  // its guardian has the other end of the pipe, too
  while (::poll(polled, 2, -1) < 0 && errno == EINTR) {
  }
  Answer answer{};
  const bool answers = polled[0].revents != 0 && ::read(ready_.get(), &answer, sizeof answer) == sizeof answer;
  ready_.reset();
  if (!answers) return fail(Code::kNoRoom, "the lazy-pages daemon", "has ended before it served");
  if (!answer.may_run) return fail(answer.code, "", answer.text);
  return {};
}

}  // namespace ckpt::restore
