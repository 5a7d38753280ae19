// E2: what the driver's own checkpoint costs, what it leaves in the process, and whether it works while every thread
// but the restore thread stands still.
//
//   e2 MODE [bytes = 1G] [stopped]
//   MODE: malloc; vmm (virtual memory calls); vmmfd (the same, exportable); reserve (addresses kept, memory released
//   before)
//
// 64 MiB of page-locked host memory in every mode.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/device/experiments/experiment.h"

namespace {

constexpr size_t kHost = 64 << 20;
constexpr size_t kStride = 1 << 20;

/// Made, checkpointed by the other process, verified.
[[noreturn]] void be_target(const std::string& mode, size_t size, int other) {
  driver_start();
  Mapped memory{0, size, 0};
  if (mode == "malloc")
    CU(cuMemAlloc_v2(&memory.at, size));
  else
    memory = map_new(size, mode == "vmmfd");
  void* host = nullptr;
  CU(cuMemHostAlloc(&host, kHost, 0));
  memset(host, 0x5a, kHost);
  for (size_t at = 0; at < size; at += kStride)
    CU(cuMemsetD32_v2(memory.at + at, static_cast<unsigned>(at / kStride) * 2654435761u, kStride / 4));
  CU(cuCtxSynchronize());
  if (mode == "reserve") {
    CU(cuMemUnmap(memory.at, size));
    CU(cuMemRelease(memory.handle));
  }
  signal_other(other);
  wait_other(other);
  if (mode == "reserve") {
    const CUmemAllocationProp prop = properties_of(false);
    CU(cuMemCreate(&memory.handle, size, &prop, 0));
    map_handle(memory);
  } else {
    for (size_t at = 0; at < size; at += kStride) {
      unsigned word = 0;
      CU(cuMemcpyDtoH_v2(&word, memory.at + at, sizeof word));
      CHECK_EQUAL(word, static_cast<unsigned>(at / kStride) * 2654435761u);
    }
  }
  CU(cuMemcpyHtoD_v2(memory.at, host, kStride));
  signal_other(other);
  for (;;) pause();
}

void describe(int pid, const std::string& name) {
  const Look look = look_at(pid);
  report("E2", name + ", mappings", look.mappings, "");
  report("E2", name + ", mappings of the device", look.device_mappings, "");
  report("E2", name + ", descriptors of the device", look.device_descriptors, "");
  report("E2", name + ", pipes", look.pipes, "");
  report("E2", name + ", resident", static_cast<double>(look.resident_kib) / 1024, "MiB");
}

std::vector<int> stop_all_but(int pid, int except) {
  std::vector<int> stopped;
  for (int tid : threads_of(pid)) {
    if (tid == except) continue;
    CHECK(ptrace(PTRACE_SEIZE, tid, 0, 0) == 0);
    CHECK(ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0);
    CHECK(waitpid(tid, nullptr, __WALL) == tid);
    stopped.push_back(tid);
  }
  return stopped;
}

}  // namespace

int main(int argc, char** argv) {
  experiment_begin(argc, argv);
  const std::string mode = argc > 1 ? argv[1] : "malloc";
  const size_t size = argument(argc, argv, 2, uint64_t{1} << 30);
  const bool stopped = argc > 3;
  const std::string name = mode + ", " + std::to_string(size >> 20) + " MiB" + (stopped ? ", threads stopped" : "");
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const pid_t pid = fork();
  if (pid == 0) be_target(mode, size, ends[1]);
  close(ends[1]);
  wait_other(ends[0]);

  double began = seconds();
  CU(cuInit(0));  // needed before a restore: persistence mode is not ours to set
  report("E2", "cuInit of the caller", seconds() - began, "s");
  int restorer = 0;
  CU(cuCheckpointProcessGetRestoreThreadId(pid, &restorer));
  describe(pid, name + ", running");
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = 10000;
  CUcheckpointCheckpointArgs checkpoint{};
  CUcheckpointRestoreArgs restore{};
  CUcheckpointUnlockArgs unlock{};
  const double start = seconds();
  CU(cuCheckpointProcessLock(pid, &lock));
  const double locked = seconds();
  std::vector<int> held;
  if (stopped) held = stop_all_but(pid, restorer);
  began = seconds();
  CU(cuCheckpointProcessCheckpoint(pid, &checkpoint));
  const double checkpointed = seconds() - began;
  describe(pid, name + ", checkpointed");
  began = seconds();
  CU(cuCheckpointProcessRestore(pid, &restore));
  const double restored = seconds() - began;
  began = seconds();
  CU(cuCheckpointProcessUnlock(pid, &unlock));
  report("E2", name + ", lock", locked - start, "s");
  report("E2", name + ", checkpoint", checkpointed, "s");
  report("E2", name + ", restore", restored, "s");
  report("E2", name + ", unlock", seconds() - began, "s");
  if (mode != "reserve") {
    report("E2", name + ", checkpoint rate", static_cast<double>(size) / checkpointed * 1e-9, "GB/s");
    report("E2", name + ", restore rate", static_cast<double>(size) / restored * 1e-9, "GB/s");
  }
  for (int tid : held) ptrace(PTRACE_DETACH, tid, 0, 0);
  signal_other(ends[0]);
  wait_other(ends[0]);
  report("E2", name + ", contents and pinned memory after it", 1, "right");
  // Never kill a restored process whose context lives (cuda-checkpoint issue 53): suspend it first.
  CU(cuCheckpointProcessLock(pid, &lock));
  CU(cuCheckpointProcessCheckpoint(pid, &checkpoint));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return 0;
}
