// A program with device memory that does what it is told, a line of stdin at a time, and answers with one line: "ok
// ..." or "no ...". The tests of the interposer (puppet_process.h) look at it from outside meanwhile.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "tests/device/programs/program.h"

namespace {

CUcontext context;
CUmodule module_;
CUlibrary library;
Words* words;
std::vector<std::pair<CUdeviceptr, size_t>> memory;

std::atomic<bool> halted{true};
struct Hammer {
  std::thread thread;
  std::atomic<uint64_t> launches{0};
};
std::vector<std::unique_ptr<Hammer>> hammers;
CUdeviceptr counters;  // a word of its own for each thread, 64 bytes apart

CUstream capturing;
uint32_t* spin_stop;

std::string no(const char* what, CUresult result) { return std::string("no ") + what + " " + std::to_string(result); }
#define DO(call)                                                        \
  do {                                                                  \
    if (CUresult result_ = cu.call; result_ != CUDA_SUCCESS) return no(#call, result_); \
  } while (0)

void hammer(Hammer* self, int number) {
  CU(cuCtxSetCurrent(context));
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUfunction add = kernel(module_, "add");
  CUdeviceptr at = counters + 64 * number;
  uint64_t one = 1;
  for (uint64_t i = 0; !halted; ++i) {
    launch(add, stream, {&at, &one}, 1, 1);
    self->launches.fetch_add(1);
    if (i % 64 == 63) CU(cuStreamSynchronize(stream));
  }
  CU(cuStreamSynchronize(stream));
  CU(cuStreamDestroy_v2(stream));
}

std::string start_hammers(int count) {
  DO(cuMemsetD8_v2(counters, 0, 64 * 64));
  DO(cuCtxSynchronize());
  halted = false;
  for (int i = 0; i < count; ++i) {
    hammers.push_back(std::make_unique<Hammer>());
    hammers.back()->thread = std::thread(hammer, hammers.back().get(), i);
  }
  return "ok";
}

std::string stop_hammers() {
  halted = true;
  uint64_t all = 0;
  for (size_t i = 0; i < hammers.size(); ++i) {
    hammers[i]->thread.join();
    uint64_t seen = 0;
    DO(cuMemcpyDtoH_v2(&seen, counters + 64 * i, 8));
    if (seen != hammers[i]->launches)
      return "no thread " + std::to_string(i) + " launched " + std::to_string(hammers[i]->launches) + ", ran " +
             std::to_string(seen);
    all += seen;
  }
  hammers.clear();
  return "ok " + std::to_string(all);
}

std::string attributes(size_t index) {
  CUdeviceptr base = 0, start = 0, at = memory[index].first + 100;
  size_t size = 0, range = 0;
  CUcontext owner = nullptr;
  unsigned type = 0;
  DO(cuMemGetAddressRange_v2(&base, &size, at));
  DO(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, at));
  DO(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* into[] = {&start, &range};
  DO(cuPointerGetAttributes(2, which, into, at));
  if (base != memory[index].first || start != base || owner != context || type != CU_MEMORYTYPE_DEVICE || range != size)
    return "no attributes";
  return "ok " + std::to_string(size);
}

/// A graph captured from a stream, memory allocated and freed meanwhile, launched twice.
std::string graph(size_t index) {
  CUstream stream;
  CUgraph made;
  CUgraphExec run;
  CUdeviceptr extra;
  uint64_t one = 1, before = 0, after = 0;
  CUdeviceptr at = memory[index].first;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  DO(cuMemcpyDtoH_v2(&before, at, 8));
  DO(cuThreadExchangeStreamCaptureMode(&mode));
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DO(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  launch(kernel(module_, "add"), stream, {&at, &one}, 1, 1);
  DO(cuMemAlloc_v2(&extra, 4 << 20));
  DO(cuMemFree_v2(extra));
  DO(cuStreamEndCapture(stream, &made));
  DO(cuThreadExchangeStreamCaptureMode(&mode));
  DO(cuGraphInstantiateWithFlags(&run, made, 0));
  for (int i = 0; i < 2; ++i) DO(cuGraphLaunch(run, stream));
  DO(cuStreamSynchronize(stream));
  DO(cuMemcpyDtoH_v2(&after, at, 8));
  DO(cuGraphExecDestroy(run));
  DO(cuGraphDestroy(made));
  DO(cuStreamDestroy_v2(stream));
  return after == before + 2 ? "ok" : "no graph: " + std::to_string(after - before);
}

std::string spin() {
  CUstream stream;
  DO(cuMemHostAlloc(reinterpret_cast<void**>(&spin_stop), 4096, kMemHostAllocDeviceMap));
  *spin_stop = 0;
  DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr at = reinterpret_cast<CUdeviceptr>(spin_stop);
  launch(kernel(module_, "spin"), stream, {&at}, 1, 1);
  return "ok";
}

/// CUDA in a forked child is over, the rest of it is not; a child that it starts goes on as usual.
std::string forked() {
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr p;
    const bool refused = cu.cuMemAlloc_v2(&p, 4 << 20) != CUDA_SUCCESS;
    const char* words_[] = {"true", nullptr};
    if (refused) execvp("true", const_cast<char**>(words_));
    _exit(3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? "ok" : "no child: " + std::to_string(status);
}

/// As under sandboxes that do not have the call: every thread's membarrier(2) answers ENOSYS.
std::string forbid_membarrier() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program = {sizeof code / sizeof code[0], code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0 ? "ok" : "no seccomp";
}

/// Threads that come and go, each with a few calls.
std::string churn(int threads) {
  for (int i = 0; i < threads; ++i) {
    std::thread([] {
      CU(cuCtxSetCurrent(context));
      CU(cuMemsetD8_v2(counters, 0, 64));
    }).join();
  }
  return "ok";
}

/// A range mapped piece by piece, as growing segments are; the handles are kept.
std::vector<CUmemGenericAllocationHandle> pieces;
std::string segment(size_t count, size_t piece) {
  CUmemAllocationProp prop{}, told{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr at;
  DO(cuMemAddressReserve(&at, count * piece, 0, 0, 0));
  for (size_t i = 0; i < count; ++i) {
    pieces.emplace_back();
    DO(cuMemCreate(&pieces.back(), piece, &prop, 0));
    DO(cuMemMap(at + i * piece, piece, 0, pieces.back(), 0));
  }
  DO(cuMemSetAccess(at, count * piece, &access, 1));
  DO(cuMemGetAllocationPropertiesFromHandle(&told, pieces[0]));
  if (told.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return "no properties";
  CUmemGenericAllocationHandle again;
  DO(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + 100)));
  if (again != pieces[pieces.size() - count]) return "no retained handle";
  DO(cuMemRelease(again));
  memory.push_back({at, count * piece});
  return "ok " + std::to_string(at);
}

std::string end_segment(size_t index) {
  DO(cuMemUnmap(memory[index].first, memory[index].second));
  for (CUmemGenericAllocationHandle piece : pieces) DO(cuMemRelease(piece));
  if (cu.cuMemRelease(pieces[0]) == CUDA_SUCCESS) return "no error for a handle that is gone";
  DO(cuMemAddressFree(memory[index].first, memory[index].second));
  pieces.clear();
  return "ok";
}

/// Another process could map this piece now.
std::string share(size_t piece) {
  int fd = -1;
  DO(cuMemExportToShareableHandle(&fd, pieces[piece], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(fd);
  return "ok";
}

/// Memory that comes by a descriptor, as another process's would.
std::string import(size_t size) {
  constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = kFd;
  CUmemGenericAllocationHandle made, imported;
  int fd = -1;
  DO(cuMemCreate(&made, size, &prop, 0));
  DO(cuMemExportToShareableHandle(&fd, made, kFd, 0));
  DO(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), kFd));
  close(fd);
  CUdeviceptr at;
  DO(cuMemAddressReserve(&at, size, 0, 0, 0));
  DO(cuMemMap(at, size, 0, imported, 0));
  DO(cuMemRelease(imported));
  DO(cuMemRelease(made));
  memory.push_back({at, size});
  return "ok";
}

std::string pitched(size_t width, size_t height) {
  CUdeviceptr p;
  size_t pitch;
  DO(cuMemAllocPitch_v2(&p, &pitch, width, height, 4));
  DO(cuMemsetD2D8_v2(p, pitch, 1, width, height));
  memory.push_back({p, pitch * height});
  return "ok " + std::to_string(pitch);
}

std::string table(size_t target, size_t holder, uint64_t seed) {
  // The kernel is given the table alone: what it writes is in the table.
  unsigned long long entry = memory[target].first;
  uint64_t entries = 1;
  CUdeviceptr at = memory[holder].first;
  DO(cuMemcpyHtoD_v2(at, &entry, 8));
  launch(kernel(module_, "scatter"), nullptr, {&at, &entries, &seed}, 1, 1);
  DO(cuCtxSynchronize());
  return "ok";
}

/// A context beside the main one, with memory of its own.
CUcontext second;
std::string begin_second(size_t size) {
  CUdeviceptr p;
  DO(cuCtxCreate_v2(&second, 0, 0));
  DO(cuMemAlloc_v2(&p, size));
  DO(cuCtxSetCurrent(context));
  return "ok " + std::to_string(p);
}

/// A handle as hexadecimal digits.
std::string give_ipc(size_t index) {
  CUipcMemHandle handle;
  DO(cuIpcGetMemHandle(&handle, memory[index].first));
  std::ostringstream out;
  for (char byte : handle.reserved) out << std::hex << std::setw(2) << std::setfill('0') << (byte & 0xff);
  return "ok " + out.str();
}

std::string take_ipc(const std::string& digits) {
  CUipcMemHandle handle;
  CUdeviceptr there;
  for (size_t i = 0; i < sizeof handle.reserved; ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  DO(cuIpcOpenMemHandle_v2(&there, handle, 1));
  memory.push_back({there, 0});
  return "ok";
}

/// Ends, and calls the driver once more when what was preloaded has ended.
[[noreturn]] void exit_late() {
  void* late = dlopen(CKPT_LATE, RTLD_NOW);
  *static_cast<void (**)()>(dlsym(late, "late_call")) = [] {
    CUdeviceptr p;
    (void)cu.cuMemAlloc_v2(&p, 4096);
  };
  std::exit(0);
}

std::string obey(const std::string& line) {
  std::istringstream in(line);
  std::string verb;
  uint64_t a = 0, b = 0, c = 0;
  in >> verb >> a >> b >> c;
  if (verb == "alloc") {
    CUdeviceptr p = 0;
    DO(cuMemAlloc_v2(&p, a));
    memory.push_back({p, a});
    return "ok " + std::to_string(p);
  }
  if (verb == "free") {
    DO(cuMemFree_v2(memory[a].first));
    return "ok";
  }
  if (verb == "free-at") {
    DO(cuMemFree_v2(a));
    return "ok";
  }
  if (verb == "free-async") {
    CUstream stream;
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DO(cuMemFreeAsync(memory[a].first, stream));
    DO(cuStreamDestroy_v2(stream));
    return "ok";
  }
  if (verb == "free-twice") return cu.cuMemFree_v2(memory[a].first) == CUDA_ERROR_INVALID_VALUE ? "ok" : "no";
  if (verb == "host") {
    void* p;
    DO(cuMemHostAlloc(&p, a, 0));
    return "ok " + std::to_string(reinterpret_cast<uintptr_t>(p));
  }
  if (verb == "managed") {
    CUdeviceptr p;
    DO(cuMemAllocManaged(&p, a, kMemAttachGlobal));
    return "ok " + std::to_string(p);
  }
  if (verb == "pool") {
    CUdeviceptr p;
    DO(cuMemAllocAsync(&p, a, nullptr));
    return "ok " + std::to_string(p);
  }
  if (verb == "segment") return segment(a, b);
  if (verb == "end-segment") return end_segment(a);
  if (verb == "share") return share(a);
  if (verb == "import") return import(a);
  if (verb == "unmap") {
    DO(cuMemUnmap(memory[a].first, memory[a].second));
    return "ok";
  }
  if (verb == "pitch") return pitched(a, b);
  if (verb == "write") {
    words->write(memory[a].first, memory[a].second, b);
    DO(cuCtxSynchronize());
    return "ok";
  }
  if (verb == "submit") {
    words->write(memory[a].first, memory[a].second, b);
    return "ok";
  }
  if (verb == "check") {
    words->check(memory[a].first, memory[a].second, b);
    return "ok";
  }
  if (verb == "fill") {
    DO(cuMemsetD8_v2(memory[a].first + b, 0x5a, c));
    DO(cuCtxSynchronize());
    return "ok";
  }
  if (verb == "library") {
    if (library != nullptr) DO(cuLibraryUnload(library));
    library = library_load();
    words->fill = library_kernel(library, "fill");
    return "ok";
  }
  if (verb == "hammer") return start_hammers(static_cast<int>(a));
  if (verb == "halt") return stop_hammers();
  if (verb == "attributes") return attributes(a);
  if (verb == "graph") return graph(a);
  if (verb == "table") return table(a, b, c);
  if (verb == "begin-capture") {
    DO(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    DO(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
    return "ok";
  }
  if (verb == "drop-capture") {
    DO(cuStreamDestroy_v2(capturing));
    return "ok";
  }
  if (verb == "end-capture") {
    CUgraph made;
    DO(cuStreamEndCapture(capturing, &made));
    return "ok";
  }
  if (verb == "spin") return spin();
  if (verb == "unspin") {
    *spin_stop = 1;
    return "ok";
  }
  if (verb == "forbid-membarrier") return forbid_membarrier();
  if (verb == "churn") return churn(static_cast<int>(a));
  if (verb == "fork") return forked();
  if (verb == "exit") exit_late();
  if (verb == "give-ipc") return give_ipc(a);
  if (verb == "take-ipc") return take_ipc(line.substr(line.rfind(' ') + 1));
  if (verb == "close-ipc") {
    DO(cuIpcCloseMemHandle(memory[a].first));
    return "ok";
  }
  if (verb == "begin-second") return begin_second(a);
  if (verb == "end-second") {
    DO(cuCtxDestroy_v2(second));
    return "ok";
  }
  if (verb == "reset") {
    CUdevice device;
    DO(cuCtxGetDevice(&device));
    DO(cuDevicePrimaryCtxReset_v2(device));
    return "ok";
  }
  return "no such command";
}

}  // namespace

int main(int argc, char** argv) {
  char here[] = ".";
  char* words_[] = {argv[0], argc > 1 ? argv[1] : here, nullptr};
  target_init(2, words_);
  context = driver_start();
  module_ = kernels_load();
  words = new Words(module_);
  CU(cuMemAlloc_v2(&counters, 4 << 20));
  printf("ok\n");
  fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    printf("%s\n", obey(line).c_str());
    fflush(stdout);
  }
  halted = true;
  _exit(0);
}
