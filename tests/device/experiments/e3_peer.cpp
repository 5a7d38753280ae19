// E3: another process maps the target's memory and reads it while the target's kernels run: how fast, and what it costs
// the target.
//
//   e3 [bytes = 1G] [seconds of a phase = 4]
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/device/experiments/experiment.h"

namespace {

const char* const kPhases[] = {"alone", "peer copies to the host", "peer reads with a kernel", "alone again"};

/// Steps of a second, while the peer does its phase.
[[noreturn]] void be_target(size_t size, double duration, int other) {
  driver_start();
  CUfunction fill = kernel(kernels_load(), "fill");
  Mapped memory = map_new(size, true);
  int fd = -1;
  CU(cuMemExportToShareableHandle(&fd, memory.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_fd(other, fd);
  close(fd);
  for (const char* phase : kPhases) {
    wait_other(other);
    int steps = 0;
    const double began = seconds();
    for (; seconds() - began < duration; ++steps) {
      uint64_t words = size / 8, seed = static_cast<uint64_t>(steps);
      launch(fill, nullptr, {&memory.at, &words, &seed}, 1056, 512);
      CU(cuCtxSynchronize());
    }
    report("E3", std::string("target, ") + phase, steps / (seconds() - began), "steps/s");
    signal_other(other);
  }
  wait_other(other);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  experiment_begin(argc, argv);
  const size_t size = argument(argc, argv, 1, uint64_t{1} << 30);
  const double duration = argc > 2 ? atof(argv[2]) : 4;
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const pid_t pid = fork();
  if (pid == 0) be_target(size, duration, ends[1]);
  close(ends[1]);

  driver_start();
  CUmodule module = kernels_load();
  CUfunction verify = kernel(module, "verify");
  const int fd = receive_fd(ends[0]);
  double began = seconds();
  Mapped memory{reserve_range(size), size, 0};
  void* given = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  CU(cuMemImportFromShareableHandle(&memory.handle, given, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  map_handle(memory);
  report("E3", "import and map", (seconds() - began) * 1e3, "ms");
  const CUmemAccessDesc reading{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
  report("E3", "read-only access of an import, CUresult", cu.cuMemSetAccess(memory.at, size, &reading, 1), "");

  const size_t part = std::min<size_t>(size, 64 << 20);
  void* ring = nullptr;
  CUdeviceptr wrong = 0;
  CUstream stream;
  CU(cuMemHostAlloc(&ring, part, 0));
  CU(cuMemAlloc_v2(&wrong, 8));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int phase = 0; phase < 4; ++phase) {
    signal_other(ends[0]);
    double bytes = 0;
    began = seconds();
    while ((phase == 1 || phase == 2) && seconds() - began < duration * 0.9) {
      uint64_t words = size / 8, seed = 0;
      for (size_t at = 0; phase == 1 && at < size; at += part)
        CU(cuMemcpyDtoHAsync_v2(ring, memory.at + at, std::min(part, size - at), stream));
      if (phase == 2) launch(verify, stream, {&memory.at, &words, &seed, &wrong}, 1056, 512);
      CU(cuStreamSynchronize(stream));
      bytes += static_cast<double>(size);
    }
    if (bytes > 0) report("E3", std::string("rate, ") + kPhases[phase], bytes / (seconds() - began) * 1e-9, "GB/s");
    wait_other(ends[0]);
  }
  CU(cuMemUnmap(memory.at, size));
  CU(cuMemRelease(memory.handle));
  signal_other(ends[0]);
  waitpid(pid, nullptr, 0);
  return 0;
}
