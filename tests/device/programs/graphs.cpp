// Graphs (built by hand and captured), streams that wait for each other's events, pools, page-locked memory both ways
// and a variable of a module: all of it made before, used after.
#include "tests/device/programs/program.h"

namespace {

constexpr size_t kBytes = 1 << 20;

struct Everything {
  CUcontext context;
  CUmodule module;
  CUstream first, second, third;
  CUevent done, timed;
  CUgraph by_hand, captured;
  CUgraphExec by_hand_exec, captured_exec;
  CUdeviceptr counter, words, pooled, pitched, global;
  size_t pitch, global_size;
  CUmemoryPool pool;
  uint64_t* locked;     // of cuMemHostAlloc
  char* registered;     // of cuMemHostRegister
  uint64_t runs = 0;
  int calls = 0;
};
Everything* all;

void called(void* argument) { ++*static_cast<int*>(argument); }

/// memset -> add 3 -> host function; each launch begins the counter anew.
void build_by_hand() {
  CUgraphNode clear, add, host;
  CU(cuGraphCreate(&all->by_hand, 0));
  CUDA_MEMSET_NODE_PARAMS zero{all->counter, 0, 0, 4, 2, 1};
  CU(cuGraphAddMemsetNode(&clear, all->by_hand, nullptr, 0, &zero, all->context));
  uint64_t three = 3;
  void* params[] = {&all->counter, &three};
  CUDA_KERNEL_NODE_PARAMS node{kernel(all->module, "add"), 1, 1, 1, 32, 1, 1, 0, params, nullptr, nullptr, nullptr};
  CU(cuGraphAddKernelNode_v2(&add, all->by_hand, &clear, 1, &node));
  CUDA_HOST_NODE_PARAMS call{called, &all->calls};
  CU(cuGraphAddHostNode(&host, all->by_hand, &add, 1, &call));
  CU(cuGraphInstantiateWithFlags(&all->by_hand_exec, all->by_hand, 0));
}

/// Two streams: the second waits for what the first has recorded, and the first for the second.
void capture() {
  CUevent fork, join;
  CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  CUfunction add = kernel(all->module, "add");
  uint64_t one = 1, ten = 10;
  CUdeviceptr other = all->counter + 8;
  CU(cuStreamBeginCapture_v2(all->first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  launch(add, all->first, {&all->counter, &one}, 1, 32);
  CU(cuEventRecord(fork, all->first));
  CU(cuStreamWaitEvent(all->second, fork, 0));
  launch(add, all->second, {&other, &ten}, 1, 32);
  CU(cuEventRecord(join, all->second));
  CU(cuStreamWaitEvent(all->first, join, 0));
  launch(add, all->first, {&all->counter, &one}, 1, 32);
  CU(cuStreamEndCapture(all->first, &all->captured));
  size_t nodes = 0;
  CU(cuGraphGetNodes(all->captured, nullptr, &nodes));
  CHECK_EQUAL(nodes, 3);
  CU(cuGraphInstantiateWithFlags(&all->captured_exec, all->captured, 0));
}

void set_up() {
  all->context = driver_start();
  all->module = kernels_load();
  CU(cuStreamCreate(&all->first, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreateWithPriority(&all->second, CU_STREAM_NON_BLOCKING, -1));
  CU(cuStreamCreate(&all->third, CU_STREAM_DEFAULT));
  CU(cuEventCreate(&all->done, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&all->timed, CU_EVENT_DEFAULT));
  CU(cuMemAlloc_v2(&all->counter, 16));
  CU(cuMemAlloc_v2(&all->words, kBytes));
  CU(cuMemAllocPitch_v2(&all->pitched, &all->pitch, 1000, 64, 4));
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CU(cuMemPoolCreate(&all->pool, &props));
  CU(cuMemAllocFromPoolAsync(&all->pooled, kBytes, all->pool, all->first));
  void* host = nullptr;
  CU(cuMemHostAlloc(&host, kBytes, kMemHostAllocPortable));
  all->locked = static_cast<uint64_t*>(host);
  all->registered = static_cast<char*>(map_pages(kBytes));
  CU(cuMemHostRegister_v2(all->registered, kBytes, kMemHostRegisterPortable));
  if (cu.cuModuleGetGlobal_v2(&all->global, &all->global_size, all->module, "g_words") != CUDA_SUCCESS)
    all->global_size = 0;
  build_by_hand();
  capture();
}

void run_once(const Words& words) {
  uint64_t number = ++all->runs, got[2];
  CU(cuGraphLaunch(all->by_hand_exec, all->first));
  CU(cuGraphLaunch(all->captured_exec, all->first));
  CU(cuMemcpyDtoHAsync_v2(all->locked, all->counter, 16, all->first));
  CU(cuStreamSynchronize(all->first));
  got[0] = all->locked[0], got[1] = all->locked[1];
  CHECK_EQUAL(got[0], 5);
  CHECK_EQUAL(got[1], 10 * number);
  CHECK_EQUAL(all->calls, static_cast<int>(number));
  // The first stream writes, the third copies when that is done, the host sees it.
  words.write(all->words, kBytes, number, all->first);
  CU(cuEventRecord(all->done, all->first));
  CU(cuStreamWaitEvent(all->third, all->done, 0));
  CU(cuMemcpyDtoDAsync_v2(all->pooled, all->words, kBytes, all->third));
  CU(cuMemcpyDtoHAsync_v2(all->registered, all->pooled, kBytes, all->third));
  CU(cuEventRecord(all->timed, all->third));
  CU(cuEventSynchronize(all->timed));
  for (size_t i = 0; i < kBytes / 8; i += 97) {
    uint64_t word;
    memcpy(&word, all->registered + 8 * i, 8);
    if (word != word_of(number, i))
      target_fail("run %llu: word %zu of the registered memory is wrong", (unsigned long long)number, i);
  }
  CUdeviceptr moment;
  CU(cuMemAllocAsync(&moment, 70000, all->second));
  CU(cuMemsetD8Async(moment, 3, 70000, all->second));
  CU(cuMemFreeAsync(moment, all->second));
}

void check_lasting(const Words& words) {
  words.check(all->words, kBytes, all->runs);
  words.check(all->pooled, kBytes, all->runs);
  std::vector<unsigned char> rows(1000 * 64);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE, copy.srcDevice = all->pitched, copy.srcPitch = all->pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = rows.data(), copy.dstPitch = 1000;
  copy.WidthInBytes = 1000, copy.Height = 64;
  CU(cuMemcpy2D_v2(&copy));
  for (unsigned char byte : rows) CHECK_EQUAL(byte, 0xa7);
  if (all->global_size != 0) words.check(all->global, all->global_size, 55);
}

const Words* g_words;
void step(int) { run_once(*g_words); }

}  // namespace

int main(int argc, char** argv) {
  target_init(argc, argv);
  all = new Everything;
  set_up();
  Words words(all->module);
  g_words = &words;
  CU(cuMemsetD32_v2(all->counter, 0, 4));
  CU(cuMemsetD2D8_v2(all->pitched, all->pitch, 0xa7, 1000, 64));
  if (all->global_size != 0) words.write(all->global, all->global_size, 55);
  for (int i = 0; i < 3; ++i) run_once(words);
  target_ready();
  target_wait(step);
  check_lasting(words);
  for (int i = 0; i < 3; ++i) run_once(words);
  CU(cuMemFreeAsync(all->pooled, all->first));
  CU(cuCtxSynchronize());
  CU(cuMemPoolDestroy(all->pool));
  CU(cuModuleUnload(all->module));
  target_pass();
}
