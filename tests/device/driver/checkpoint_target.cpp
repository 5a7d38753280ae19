// Checkpoints, the side of the target: the restore thread and what it does. See state.h for what it may not do.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/device/driver/state.h"

__attribute__((visibility("default"))) ckpt::standin::Note ckpt_standin_note;

namespace ckpt::standin {

namespace {

void set_state(CUprocessState state) { ckpt_standin_note.state = state; }

CUresult failed() {
  set_state(CU_PROCESS_STATE_FAILED);
  return CUDA_ERROR_UNKNOWN;
}

/// An injected fault of an operation, before it has done anything.
bool injected(const char* name, CUresult& result) {
  result = fault(name);
  if (static_cast<int>(result) == -1) result = failed();
  return result != CUDA_SUCCESS;
}

CUresult do_lock(uint32_t timeout_ms) {
  CUresult result;
  if (injected("targetLock", result)) return result;
  gate_close();
  timespec began, now;
  ::clock_gettime(CLOCK_MONOTONIC, &began);
  ::usleep(settings().lock_ms * 1000);
  while (!gate_quiet() || pending_work.load() != 0) {
    ::usleep(200);
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t passed = (now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000;
    if (timeout_ms == 0 || passed < timeout_ms) continue;
    gate_open();
    return CUDA_ERROR_NOT_READY;
  }
  set_state(CU_PROCESS_STATE_LOCKED);
  return CUDA_SUCCESS;
}

/// The bytes that the file has, holes left alone.
bool read_out(Physical& physical) {
  void* room =
      ::mmap(nullptr, physical.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return false;
  physical.saved = static_cast<char*>(room);
  off_t start = static_cast<off_t>(physical.offset), end = start + static_cast<off_t>(physical.size);
  for (off_t at = start; at < end;) {
    off_t data = ::lseek(physical.fd, at, SEEK_DATA);
    if (data < 0 || data >= end) return true;
    off_t hole = std::min(::lseek(physical.fd, data, SEEK_HOLE), end);
    while (data < hole) {
      ssize_t got = ::pread(physical.fd, physical.saved + (data - start), static_cast<size_t>(hole - data), data);
      if (got <= 0) return false;
      data += got;
    }
    at = hole;
  }
  return true;
}

bool write_back(const Physical& physical) {
  static char zero[4096];
  for (size_t at = 0; at < physical.size; at += sizeof(zero)) {
    if (::memcmp(physical.saved + at, zero, sizeof(zero)) == 0) continue;
    if (::pwrite(physical.fd, physical.saved + at, sizeof(zero), static_cast<off_t>(physical.offset + at)) !=
        sizeof(zero))
      return false;
  }
  return true;
}

void drop_saved() {
  for (Physical& each : memory().physical) {
    if (each.saved != nullptr) ::munmap(each.saved, each.size);
    each.saved = nullptr;
  }
}

bool has_what_cannot_be() {
  if (memory().managed || memory().ipc) return true;
  for (const Physical& each : memory().physical)
    if (each.imported) return true;
  return false;
}

CUresult do_checkpoint() {
  CUresult result;
  if (injected("targetCheckpoint", result)) return result;
  if (has_what_cannot_be()) return CUDA_ERROR_NOT_SUPPORTED;
  size_t count = 0;
  for (Physical& each : memory().physical) {
    if (!read_out(each)) {
      drop_saved();
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (++count == 1 && injected("targetCheckpointMiddle", result)) return result;
  }
  for (auto& [address, mapping] : memory().maps) shadow_unmap(address, mapping.size);
  for (Physical& each : memory().physical) {
    if (each.own_fd) {
      ::close(each.fd);
      ledger_drop(each.inode);
    } else {
      ledger_give(gpu_of[each.device], each.size);
    }
    each.fd = -1;
  }
  for (int& fd : memory().pool_fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  nodes_drop();
  set_state(CU_PROCESS_STATE_CHECKPOINTED);
  return CUDA_SUCCESS;
}

/// Every GPU that this process sees must be named, once, and go to one of the same kind and size, of its own.
CUresult read_pairs(const Request& request, int (&to)[kMaxGpus]) {
  for (int device = 0; device < kMaxGpus; ++device) to[device] = gpu_of[device];
  if (request.pairs == 0) return CUDA_SUCCESS;
  for (int device = 0; device < settings().gpus; ++device) {
    int named = 0;
    for (uint32_t i = 0; i < request.pairs; ++i) {
      CUuuid old = uuid_of(gpu_of[device]);
      if (::memcmp(&request.pair[i].oldUuid, &old, sizeof(old)) != 0) continue;
      ++named;
      int found = -1;
      for (int gpu = 0; gpu < settings().gpus; ++gpu) {
        CUuuid uuid = uuid_of(gpu);
        if (::memcmp(&request.pair[i].newUuid, &uuid, sizeof(uuid)) == 0) found = gpu;
      }
      if (found < 0 || settings().capacity[found] != settings().capacity[gpu_of[device]])
        return CUDA_ERROR_INVALID_VALUE;
      to[device] = found;
    }
    if (named != 1) return CUDA_ERROR_INVALID_VALUE;
    for (int other = 0; other < device; ++other)
      if (to[other] == to[device]) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

bool take_all(const int (&to)[kMaxGpus]) {
  uint64_t wanted[kMaxGpus] = {};
  for (const Physical& each : memory().physical) wanted[to[each.device]] += each.size;
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) {
    if (wanted[gpu] == 0 || ledger_take(gpu, wanted[gpu])) continue;
    for (int before = 0; before < gpu; ++before)
      if (wanted[before] != 0) ledger_give(before, wanted[before]);
    return false;
  }
  return true;
}

bool bring_back(Physical& each) {
  each.restored = true;
  if (each.own_fd) {
    char name[32];
    ::snprintf(name, sizeof(name), "standin-export-%d", gpu_of[each.device]);
    each.fd = make_memfd(name);
    each.inode = inode_of(each.fd);
    if (each.fd < 0 || ::ftruncate(each.fd, static_cast<off_t>(each.size)) != 0) return false;
    if (!ledger_hold(gpu_of[each.device], each.size, each.inode, true)) return false;
  } else {
    int& pool = memory().pool_fd[each.device];
    if (pool < 0) pool = make_memfd("standin-gpu");
    if (pool < 0 || ::ftruncate(pool, static_cast<off_t>(memory().pool_end[each.device])) != 0) return false;
    each.fd = pool;
  }
  return write_back(each);
}

CUresult do_restore(const Request& request) {
  CUresult result;
  if (injected("targetRestore", result)) return result;
  int to[kMaxGpus];
  if (CUresult bad = read_pairs(request, to)) return bad;
  if (!take_all(to)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!nodes_take()) return failed();
  ::memcpy(gpu_of, to, sizeof(to));
  for (Physical& each : memory().physical)
    if (!bring_back(each)) return failed();
  if (injected("targetRestoreMiddle", result)) return result;
  for (auto& [address, mapping] : memory().maps)
    if (!shadow_map(address, mapping)) return failed();
  drop_saved();
  set_state(CU_PROCESS_STATE_LOCKED);
  return CUDA_SUCCESS;
}

CUresult do_unlock() {
  CUresult result;
  if (injected("targetUnlock", result)) return result;
  set_state(CU_PROCESS_STATE_RUNNING);
  gate_open();
  return CUDA_SUCCESS;
}

CUresult perform(const Request& request) {
  int state = ckpt_standin_note.state;
  switch (request.operation) {
    case kLock: return state == CU_PROCESS_STATE_RUNNING ? do_lock(request.timeout_ms) : CUDA_ERROR_ILLEGAL_STATE;
    case kCheckpoint: return state == CU_PROCESS_STATE_LOCKED ? do_checkpoint() : CUDA_ERROR_ILLEGAL_STATE;
    case kRestore: return state == CU_PROCESS_STATE_CHECKPOINTED ? do_restore(request) : CUDA_ERROR_ILLEGAL_STATE;
    case kUnlock: return state == CU_PROCESS_STATE_LOCKED ? do_unlock() : CUDA_ERROR_ILLEGAL_STATE;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

void* serve(void*) {
  ::pthread_setname_np(::pthread_self(), "cuda-EvtHandlr");
  ckpt_standin_note.restore_tid = static_cast<int>(::syscall(SYS_gettid));
  ckpt_standin_note.active = 1;
  for (;;) {
    Request request;
    ssize_t got = ::read(ckpt_standin_note.request_read, &request, sizeof(request));
    if (got != sizeof(request)) continue;
    Reply reply{request.number, perform(request)};
    while (::write(ckpt_standin_note.reply_write, &reply, sizeof(reply)) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace

bool restore_thread_start() {
  int request[2], reply[2];
  if (::pipe2(request, O_CLOEXEC) != 0 || ::pipe2(reply, O_CLOEXEC) != 0) return false;
  Note& note = ckpt_standin_note;
  ::memcpy(note.magic, kNoteMagic, sizeof(note.magic));
  note.state = CU_PROCESS_STATE_RUNNING;
  for (int* fd : {&request[0], &request[1], &reply[0], &reply[1]}) {
    int high = ::fcntl(*fd, F_DUPFD_CLOEXEC, 600);
    if (high < 0) continue;
    ::close(*fd);
    *fd = high;
  }
  note.request_read = request[0], note.request_write = request[1];
  note.reply_read = reply[0], note.reply_write = reply[1];
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  bool done = ::pthread_create(&thread, nullptr, serve, nullptr) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  while (done && note.active == 0) ::usleep(100);
  return done;
}

}  // namespace ckpt::standin
