// E5: memory parked in another process across the driver's checkpoint: the target gives its memory away and keeps the
// addresses, is checkpointed and restored nearly empty, takes the memory back; the contents and a graph made before
// must be as they were.
//
//   e5 [bytes = 1G] [allocations = 100]
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/device/experiments/experiment.h"

namespace {

CUmemGenericAllocationHandle import(int fd) {
  CUmemGenericAllocationHandle handle = 0;
  CU(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  return handle;
}

void export_to(int socket, CUmemGenericAllocationHandle handle) {
  int fd = -1;
  CU(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_fd(socket, fd);
  close(fd);
}

CUgraphExec make_graph(CUcontext context, CUdeviceptr at) {
  CUgraph graph;
  CUgraphExec made;
  CUgraphNode node;
  CU(cuGraphCreate(&graph, 0));
  const CUDA_MEMSET_NODE_PARAMS fill{at, 0, 77, 4, 1024, 1};
  CU(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context));
  CU(cuGraphInstantiateWithFlags(&made, graph, 0));
  return made;
}

[[noreturn]] void be_target(size_t size, int count, const std::string& name, int other) {
  CUcontext context = driver_start();
  std::vector<Mapped> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(map_new(size, true));
    CU(cuMemsetD32_v2(all[i].at, 1000u + static_cast<unsigned>(i), size / 4));
  }
  CUgraphExec graph = make_graph(context, all[0].at);
  CU(cuCtxSynchronize());
  double began = seconds();
  for (const Mapped& each : all) export_to(other, each.handle);
  report("E5", name + ", export", (seconds() - began) * 1e3, "ms");
  wait_other(other);
  began = seconds();
  for (const Mapped& each : all) {
    CU(cuMemUnmap(each.at, size));
    CU(cuMemRelease(each.handle));
  }
  report("E5", name + ", unmap and release", (seconds() - began) * 1e3, "ms");
  signal_other(other);
  wait_other(other);  // checkpointed and restored here
  began = seconds();
  for (Mapped& each : all) {
    each.handle = import(receive_fd(other));
    map_handle(each);
  }
  report("E5", name + ", import and map again", (seconds() - began) * 1e3, "ms");
  for (int i = 0; i < count; ++i) {
    unsigned word = 0;
    CU(cuMemcpyDtoH_v2(&word, all[i].at + size - 4, 4));
    CHECK_EQUAL(word, 1000 + i);
  }
  unsigned word = 0;
  CU(cuGraphLaunch(graph, nullptr));
  CU(cuCtxSynchronize());
  CU(cuMemcpyDtoH_v2(&word, all[0].at, 4));
  CHECK_EQUAL(word, 77);
  report("E5", name + ", contents and the graph after it", 1, "right");
  signal_other(other);
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  experiment_begin(argc, argv);
  const size_t total = argument(argc, argv, 1, uint64_t{1} << 30);
  const int count = static_cast<int>(argument(argc, argv, 2, 100));
  const size_t unit = 2 << 20, size = std::max(unit, total / static_cast<size_t>(count) / unit * unit);
  const std::string name = std::to_string(count) + " x " + std::to_string(size >> 20) + " MiB";
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const pid_t pid = fork();
  if (pid == 0) be_target(size, count, name, ends[1]);
  close(ends[1]);
  driver_start();
  std::vector<CUmemGenericAllocationHandle> parked;
  for (int i = 0; i < count; ++i) parked.push_back(import(receive_fd(ends[0])));
  signal_other(ends[0]);
  wait_other(ends[0]);

  CUcheckpointLockArgs lock{};
  lock.timeoutMs = 10000;
  CUcheckpointCheckpointArgs checkpoint{};
  CUcheckpointRestoreArgs restore{};
  CUcheckpointUnlockArgs unlock{};
  double times[5] = {seconds()};
  CU(cuCheckpointProcessLock(pid, &lock));
  times[1] = seconds();
  CU(cuCheckpointProcessCheckpoint(pid, &checkpoint));
  times[2] = seconds();
  CU(cuCheckpointProcessRestore(pid, &restore));
  times[3] = seconds();
  CU(cuCheckpointProcessUnlock(pid, &unlock));
  times[4] = seconds();
  const char* const steps[] = {"lock", "checkpoint", "restore", "unlock"};
  for (int i = 0; i < 4; ++i) report("E5", name + ", " + steps[i] + " of what is left", times[i + 1] - times[i], "s");
  signal_other(ends[0]);
  for (CUmemGenericAllocationHandle handle : parked) export_to(ends[0], handle);
  wait_other(ends[0]);
  const CUresult locked = cu.cuCheckpointProcessLock(pid, &lock),
                 ended = cu.cuCheckpointProcessCheckpoint(pid, &checkpoint);
  report("E5", "lock of a process that holds imports, CUresult", locked, "");
  report("E5", "checkpoint of it, CUresult", ended, "");
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return 0;
}
