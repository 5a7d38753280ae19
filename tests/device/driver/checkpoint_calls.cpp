// Checkpoints, the side of the caller: the target is found by a note in the memory of this same library there, and
// asked through pipes of its own, so that it answers also after it was killed and rebuilt with the same descriptors.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

constexpr int kPollMs = 100;
constexpr int kLongestMs = 120'000;  ///< with the restore thread stopped, the real one waits for ever

/// The process that a pid or a tid belongs to, 0: none.
int process_of(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  int group = 0;
  for (std::string line; std::getline(status, line);) {
    if (::sscanf(line.c_str(), "Tgid: %d", &group) == 1) continue;
    if (line.starts_with("State:") && line.find_first_of("ZX", 6) != std::string::npos) return 0;
  }
  return group;
}

bool read_note(int pid, uint64_t address, Note& note) {
  iovec here{&note, sizeof(note)}, there{reinterpret_cast<void*>(address), sizeof(note)};
  return ::process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof(note) &&
         ::memcmp(note.magic, kNoteMagic, sizeof(kNoteMagic)) == 0;
}

/// Where this library begins in a process, by its own file or another of its name.
bool find_note(int pid, Note& note) {
  Dl_info own{};
  ::dladdr(&ckpt_standin_note, &own);
  uint64_t offset = reinterpret_cast<uint64_t>(&ckpt_standin_note) - reinterpret_cast<uint64_t>(own.dli_fbase);
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t start = 0, end = 0, at = 1;
    int path = 0;
    if (::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %*s %n", &start, &end, &at, &path) < 3 || at != 0 || path == 0)
      continue;
    std::string name = line.substr(static_cast<size_t>(path));
    if (name.find("libcuda.so") == std::string::npos && name != own.dli_fname) continue;
    if (read_note(pid, start + offset, note) && note.active == 1) return true;
  }
  return false;
}

int open_end(int pid, int fd, int flags) {
  char path[64];
  ::snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
  return ::open(path, flags | O_CLOEXEC);
}

struct Ends {
  int request = -1, reply = -1, process = -1;
  ~Ends() {
    for (int fd : {request, reply, process})
      if (fd >= 0) ::close(fd);
  }
};

int64_t now_ms() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

CUresult await(const Ends& ends, uint64_t number) {
  pollfd both[2] = {{ends.reply, POLLIN, 0}, {ends.process, POLLIN, 0}};
  for (int64_t until = now_ms() + kLongestMs; now_ms() < until;) {
    if (::poll(both, 2, kPollMs) <= 0) continue;
    Reply reply;
    if ((both[0].revents & POLLIN) != 0 && ::read(ends.reply, &reply, sizeof(reply)) == sizeof(reply) &&
        (reply.number == number || settings().out_of_step))
      return static_cast<CUresult>(reply.result);
    if ((both[1].revents & POLLIN) != 0) return CUDA_ERROR_OPERATING_SYSTEM;  // it has ended
    if ((both[0].revents & (POLLIN | POLLHUP)) == POLLHUP) both[0].fd = -1;   // it is ending
  }
  return CUDA_ERROR_TIMEOUT;
}

CUresult ask(int pid, const Note& note, Request& request) {
  Ends ends;
  ends.process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  ends.request = open_end(pid, note.request_write, O_WRONLY);
  ends.reply = open_end(pid, note.reply_read, O_RDONLY | O_NONBLOCK);
  if (ends.process < 0 || ends.request < 0 || ends.reply < 0) return CUDA_ERROR_INVALID_VALUE;
  ::flock(ends.request, LOCK_EX);  // one caller at a time
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  request.number = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  if (::write(ends.request, &request, sizeof(request)) != sizeof(request)) return CUDA_ERROR_OPERATING_SYSTEM;
  return await(ends, request.number);
}

/// What comes before every checkpoint call: faults, the driver's version, the process.
CUresult enter(const char* name, int& pid, Note& note) {
  if (CUresult bad = fault(name)) return bad;
  if (settings().version < 12080) return CUDA_ERROR_NOT_SUPPORTED;
  pid = process_of(pid);
  if (pid != 0 && find_note(pid, note)) return CUDA_SUCCESS;
  return settings().stranger ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
}

template <class Args>
bool reserved_is_zero(const Args& args, size_t used) {
  const char* bytes = reinterpret_cast<const char*>(&args);
  for (size_t i = used; i < sizeof(args); ++i)
    if (bytes[i] != 0) return false;
  return true;
}

CUresult operate(const char* name, int pid, Request& request) {
  Note note;
  if (CUresult bad = enter(name, pid, note)) return bad;
  return ask(pid, note, request);
}

}  // namespace

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  Note note;
  if (tid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = enter(__func__, pid, note)) return bad;
  *tid = note.restore_tid;
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  Note note;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = enter(__func__, pid, note)) return bad;
  const char* told = ::getenv("CKPT_STANDIN_STATE");  // of a driver that has more states
  *state = static_cast<CUprocessState>(told != nullptr ? ::atoi(told) : note.state.load());
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  if (args != nullptr && !reserved_is_zero(*args, sizeof(args->timeoutMs))) return CUDA_ERROR_INVALID_VALUE;
  Request request{};
  request.operation = kLock;
  request.timeout_ms = args == nullptr ? 0 : args->timeoutMs;
  return operate(__func__, pid, request);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  if (args != nullptr && !reserved_is_zero(*args, 0)) return CUDA_ERROR_INVALID_VALUE;
  Request request{};
  request.operation = kCheckpoint;
  return operate(__func__, pid, request);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  if (!initialised.load()) return CUDA_ERROR_NOT_INITIALIZED;  // there is no persistence mode here
  Request request{};
  request.operation = kRestore;
  if (args != nullptr) {
    if (!reserved_is_zero(*args, offsetof(CUcheckpointRestoreArgs, reserved))) return CUDA_ERROR_INVALID_VALUE;
    if (args->gpuPairsCount > kMaxGpus) return CUDA_ERROR_INVALID_VALUE;
    if (args->gpuPairsCount != 0 && (args->gpuPairs == nullptr || settings().version < 13000))
      return CUDA_ERROR_INVALID_VALUE;
    request.pairs = args->gpuPairsCount;
    for (uint32_t i = 0; i < request.pairs; ++i) request.pair[i] = args->gpuPairs[i];
  }
  return operate(__func__, pid, request);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  if (args != nullptr && !reserved_is_zero(*args, 0)) return CUDA_ERROR_INVALID_VALUE;
  Request request{};
  request.operation = kUnlock;
  return operate(__func__, pid, request);
}

}  // namespace ckpt::cuda::api
