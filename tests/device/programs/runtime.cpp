// A program of the CUDA runtime: memory, copies, streams, events, a variable of the device, and kernels launched as the
// host code that nvcc writes launches them. What nvcc would have written stands here by hand: the registration of a fat
// binary, and a stub for each kernel.
#include "tests/device/programs/runtime.h"

#include <malloc.h>

#include "tests/device/programs/program.h"

namespace {

RuntimeTable rt;

#define RT(call)                                                                                               \
  do {                                                                                                         \
    int result_ = rt.call;                                                                                     \
    if (result_ != 0) target_fail("%s:%d: %s: %d", __FILE_NAME__, __LINE__, #call, result_);                    \
  } while (0)

// --- As of nvcc

struct FatBinary {
  struct {
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1, bytes = 16;
    uint64_t entries = sizeof(FatBinary) - 16;
  } header;
  struct {
    uint16_t kind = 1, version = 0x101;  // a text
    uint32_t bytes = 64;
    uint64_t payload = sizeof(FatBinary::text);
    uint32_t packed = 0, options = 0;
    uint16_t minor = 0, major = 7;
    uint32_t architecture = 50, name = 0, name_bytes = 0;
    uint64_t flags = 0x11, reserved = 0, unpacked = 0;  // of 64 bits, from Linux
  } entry;
  char text[104] =
      "CKPTEMU1\n"
      "kernel fill 8,8,8\n"
      "kernel verify 8,8,8,8\n"
      "kernel add 8,8\n"
      "global g_words 4096\n";
};
const FatBinary fat_binary;
const struct {
  uint32_t magic = 0x466243b1, version = 1;
  const void* data = &fat_binary;
  void* rest = nullptr;
} wrapper;

char g_words[4096];  // the host's shadow of the variable

template <class... Arguments>
void launch_stub(void (*stub)(Arguments...), Arguments... arguments) {
  void* all[] = {&arguments...};
  Dim3 grid, block;
  size_t shared;
  RuntimeStream stream;
  RT(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
  RT(cudaLaunchKernel(reinterpret_cast<const void*>(stub), grid, block, all, shared, stream));
}
void fill(uint64_t* out, uint64_t count, uint64_t seed) { launch_stub(&fill, out, count, seed); }
void verify(const uint64_t* in, uint64_t count, uint64_t seed, uint64_t* wrong) {
  launch_stub(&verify, in, count, seed, wrong);
}
void add(uint64_t* counter, uint64_t by) { launch_stub(&add, counter, by); }

/// kernel<<<blocks, threads, 0, stream>>>(arguments...)
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), RuntimeStream stream, Arguments... arguments) {
  if (rt.__cudaPushCallConfiguration({64, 1, 1}, {256, 1, 1}, 0, stream) != 0) target_fail("no launch");
  kernel(static_cast<Parameters>(arguments)...);
}

void register_all() {
  void** handle = rt.__cudaRegisterFatBinary(&wrapper);
  auto kernel = [&](auto* stub, const char* name) {
    rt.__cudaRegisterFunction(handle, reinterpret_cast<const char*>(stub), const_cast<char*>(name), name, -1, nullptr,
                              nullptr, nullptr, nullptr, nullptr);
  };
  kernel(&fill, "fill"), kernel(&verify, "verify"), kernel(&add, "add");
  rt.__cudaRegisterVar(handle, g_words, const_cast<char*>("g_words"), "g_words", 0, sizeof g_words, 0, 0);
  if (rt.__cudaRegisterFatBinaryEnd != nullptr) rt.__cudaRegisterFatBinaryEnd(handle);
}

void load_runtime() {
  mallopt(M_ARENA_MAX, 1);  // or new threads map memory at moments of their own, and the tests compare mappings
  const char* path = getenv("CKPT_TOOLKIT_FILE");
  if (path == nullptr) target_skip("CKPT_TOOLKIT_FILE names no runtime");
  void* library = dlopen(path, RTLD_NOW);
  if (library == nullptr) target_skip("no runtime: %s", dlerror());
#define CKPT_RUNTIME_FUNCTION(result, name, parameters) \
  rt.name = reinterpret_cast<result(*) parameters>(dlsym(library, #name));
  CKPT_RUNTIME_FUNCTIONS(CKPT_RUNTIME_FUNCTION)
  int count = 0, result = rt.cudaGetDeviceCount(&count);
  if (result != 0) target_skip("cudaGetDeviceCount: %d", result);
}

// --- The program

struct Piece {
  uint64_t* at = nullptr;
  size_t bytes = 0;
  uint64_t seed = 0;
};
Piece pieces[] = {{nullptr, 8 << 20, 1}, {nullptr, 3 << 20, 2}, {nullptr, 40 << 10, 3}, {nullptr, 512, 4}};
RuntimeStream streams[2];
RuntimeEvent event;
uint64_t *wrong, *counter, *pinned, added = 0;

void write(Piece& piece, uint64_t seed) {
  piece.seed = seed;
  launch(&fill, streams[0], piece.at, piece.bytes / 8, seed);
}

void check(const Piece& piece) {
  uint64_t found = 1;
  RT(cudaMemset(wrong, 0, 8));
  launch(&verify, nullptr, piece.at, piece.bytes / 8, piece.seed, wrong);
  RT(cudaMemcpy(&found, wrong, 8, kDeviceToHost));
  if (found != 0) target_fail("%llu words of %zu bytes are wrong", (unsigned long long)found, piece.bytes);
}

/// One piece by a kernel, another by copies from page-locked memory that wait for it, and a number that is counted on
/// the device.
void step(int number) {
  const uint64_t seed = static_cast<uint64_t>(number) * 16;
  write(pieces[static_cast<size_t>(number) % 3], seed);
  RT(cudaEventRecord(event, streams[0]));
  RT(cudaStreamWaitEvent(streams[1], event, 0));
  Piece& copied = pieces[3];
  for (size_t i = 0; i < copied.bytes / 8; ++i) pinned[i] = word_of(seed + 1, i);
  RT(cudaMemcpyAsync(copied.at, pinned, copied.bytes, kHostToDevice, streams[1]));
  copied.seed = seed + 1;
  launch(&add, streams[1], counter, seed);
  added += seed;
  RT(cudaMemcpyToSymbol(g_words, &added, sizeof added, 64, kHostToDevice));
  RT(cudaStreamSynchronize(streams[1]));
}

void check_all() {
  for (const Piece& piece : pieces) check(piece);
  uint64_t counted = 0, told = 0;
  RT(cudaMemcpy(&counted, counter, 8, kDeviceToHost));
  RT(cudaMemcpyFromSymbol(&told, g_words, sizeof told, 64, kDeviceToHost));
  CHECK_EQUAL(counted, added);
  CHECK_EQUAL(told, added);
}

}  // namespace

int main(int argc, char** argv) {
  target_init(argc, argv);
  load_runtime();
  register_all();
  RT(cudaSetDevice(0));
  for (RuntimeStream& each : streams) RT(cudaStreamCreate(&each));
  RT(cudaEventCreate(&event));
  RT(cudaMalloc(reinterpret_cast<void**>(&wrong), 8));
  RT(cudaMalloc(reinterpret_cast<void**>(&counter), 8));
  RT(cudaMemset(counter, 0, 8));
  RT(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4096));
  for (Piece& piece : pieces) {
    RT(cudaMalloc(reinterpret_cast<void**>(&piece.at), piece.bytes));
    write(piece, piece.seed);
  }
  step(100);
  RT(cudaDeviceSynchronize());
  target_ready();
  target_wait(step);
  check_all();
  step(101);
  check_all();
  RT(cudaFree(pieces[0].at));
  RT(cudaEventSynchronize(event));
  target_pass();
}
