#include "plugins/cuda/cuda_device.h"

#include <unistd.h>

#include <algorithm>

#include "lib/base/clock.h"
#include "plugins/cuda/kernels.h"
#include "plugins/cuda/uuid.h"

namespace ckpt::cuda {

namespace {

using namespace api;
using device::Address;
using device::ChunkHash;
using device::Range;

constexpr char kSubject[] = "device memory";
constexpr int kBlocksPerProcessor = 16;  ///< of 128 threads: all that a processor holds

/// What every object of a device shares: it outlives them.
struct Context {
  std::shared_ptr<Driver> driver;
  CUdevice device = 0;
  CUcontext context = nullptr;
  device::Properties properties;
  int processors = 1;
  CUmodule module = nullptr;
  CUfunction hash = nullptr, copy_and_hash = nullptr;

  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    if (context == nullptr) return;
    (void)call().cuCtxSetCurrent(context);
    if (module != nullptr) (void)call().cuModuleUnload(module);
    (void)call().cuCtxSetCurrent(nullptr);
    (void)call().cuDevicePrimaryCtxRelease_v2(device);
  }
  const Functions& call() const { return driver->call(); }
  /// Before every other call: objects go from thread to thread.
  Result<void> enter() const { return check(call().cuCtxSetCurrent(context), "the device's context cannot be used"); }
  Result<void> check(CUresult result, const char* message) const { return driver->check(result, kSubject, message); }
};
using Shared = std::shared_ptr<const Context>;

/// Polls: the driver's own waits know no end.
template <class Query>
Result<void> wait_until_done(const Context& context, uint64_t timeout_us, Query query) {
  CKPT_TRY(context.enter());
  const Stopwatch watch;
  for (unsigned pause = 0;;) {
    const CUresult result = query();
    if (result != CUDA_ERROR_NOT_READY) return context.check(result, "work on the device failed");
    if (watch.elapsed_us() >= timeout_us) return fail(Code::kBusy, kSubject, "work on the device is not done in time");
    if (pause > 0) ::usleep(pause);
    pause = std::min(pause * 2 + 1, 500u);
  }
}

class CudaEvent final : public device::Event {
 public:
  CudaEvent(Shared context, CUevent event) : context_(std::move(context)), event_(event) {}
  ~CudaEvent() override {
    if (context_->enter()) (void)context_->call().cuEventDestroy_v2(event_);
  }
  CUevent handle() const { return event_; }
  bool done() override { return context_->enter() && context_->call().cuEventQuery(event_) == CUDA_SUCCESS; }
  Result<void> wait(uint64_t timeout_us) override {
    return wait_until_done(*context_, timeout_us, [&] { return context_->call().cuEventQuery(event_); });
  }

 private:
  Shared context_;
  CUevent event_;
};

class CudaHostBuffer final : public device::HostBuffer {
 public:
  CudaHostBuffer(Shared context, MutableByteSpan bytes, CUdeviceptr address)
      : context_(std::move(context)), bytes_(bytes), address_{address} {}
  ~CudaHostBuffer() override {
    if (context_->enter()) (void)context_->call().cuMemFreeHost(bytes_.data());
  }
  MutableByteSpan bytes() override { return bytes_; }
  Range device_range() const override { return {address_, bytes_.size()}; }

 private:
  Shared context_;
  MutableByteSpan bytes_;
  Address address_;
};

/// Physical memory mapped at an address of ckpt's own.
class CudaBuffer final : public device::Buffer {
 public:
  CudaBuffer(Shared context, CUmemGenericAllocationHandle handle, uint64_t size)
      : context_(std::move(context)), handle_(handle), size_(size) {}
  ~CudaBuffer() override {
    if (!context_->enter()) return;
    if (mapped_) (void)context_->call().cuMemUnmap(address_, size_);
    (void)context_->call().cuMemRelease(handle_);
    if (address_ != 0) (void)context_->call().cuMemAddressFree(address_, size_);
  }
  Result<void> map() {
    const Functions& call = context_->call();
    CKPT_TRY(context_->check(call.cuMemAddressReserve(&address_, size_, 0, 0, 0), "no address range for it"));
    CKPT_TRY(context_->check(call.cuMemMap(address_, size_, 0, handle_, 0), "it cannot be mapped"));
    mapped_ = true;
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, context_->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return context_->check(call.cuMemSetAccess(address_, size_, &access, 1), "it cannot be made accessible");
  }
  Range range() const override { return {{address_}, size_}; }
  Result<UniqueFd> export_fd() override {
    CKPT_TRY(context_->enter());
    int fd = -1;
    CKPT_TRY(context_->check(
        context_->call().cuMemExportToShareableHandle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "it cannot be exported"));
    return UniqueFd(fd);
  }

 private:
  Shared context_;
  CUmemGenericAllocationHandle handle_;
  uint64_t size_;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
};

class CudaStream final : public device::Stream {
 public:
  CudaStream(Shared context, CUstream stream) : context_(std::move(context)), stream_(stream) {}
  ~CudaStream() override {
    if (!context_->enter()) return;
    (void)context_->call().cuStreamSynchronize(stream_);
    (void)context_->call().cuStreamDestroy_v2(stream_);
  }

  Result<void> copy_to_host(MutableByteSpan to, Range from) override {
    CKPT_ASSERT(to.size() == from.size);
    CKPT_TRY(context_->enter());
    return submitted(context_->call().cuMemcpyDtoHAsync_v2(to.data(), from.start.value, from.size, stream_));
  }
  Result<void> copy_to_device(Range to, ByteSpan from) override {
    CKPT_ASSERT(from.size() == to.size);
    CKPT_TRY(context_->enter());
    return submitted(context_->call().cuMemcpyHtoDAsync_v2(to.start.value, from.data(), to.size, stream_));
  }
  Result<void> copy(Address to, Range from) override {
    CKPT_TRY(context_->enter());
    return submitted(context_->call().cuMemcpyAsync(to.value, from.start.value, from.size, stream_));
  }

  Result<void> hash(Range range, uint64_t chunk, std::span<ChunkHash> out) override {
    CKPT_TRY(may_hash(chunk));
    uint64_t chunks = range.size / chunk;
    CKPT_ASSERT(range.size % chunk == 0 && out.size() == chunks);
    if (chunks == 0) return {};
    CKPT_TRY_ASSIGN(CUdeviceptr hashes, seen_by_device(out));
    CUdeviceptr from = range.start.value;
    void* parameters[] = {&from, &chunk, &chunks, &hashes};
    return launch(context_->hash, chunks, parameters);
  }

  Result<void> copy_and_hash(std::span<const Address> from, uint64_t chunk, Address to,
                             std::span<ChunkHash> out) override {
    CKPT_TRY(may_hash(chunk));
    CKPT_ASSERT(out.size() == from.size());
    if (from.empty()) return {};
    CKPT_TRY_ASSIGN(CUdeviceptr hashes, seen_by_device(out));
    CUdeviceptr target = to.value;
    while (!from.empty()) {
      uint64_t chunks = std::min<uint64_t>(from.size(), kMostChunks);
      ChunkAddresses addresses;
      for (uint64_t i = 0; i < chunks; ++i) addresses.at[i] = from[i].value;
      void* parameters[] = {&addresses, &chunk, &chunks, &target, &hashes};
      CKPT_TRY(launch(context_->copy_and_hash, chunks, parameters));
      from = from.subspan(chunks);
      target += chunks * chunk;
      hashes += chunks * sizeof(ChunkHash);
    }
    return {};
  }

  Result<std::unique_ptr<device::Event>> record() override {
    CKPT_TRY(context_->enter());
    CUevent event = nullptr;
    CKPT_TRY(context_->check(context_->call().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "no event"));
    auto made = std::make_unique<CudaEvent>(context_, event);
    CKPT_TRY(submitted(context_->call().cuEventRecord(event, stream_)));
    return std::unique_ptr<device::Event>(std::move(made));
  }
  Result<void> wait(device::Event& event) override {
    CKPT_TRY(context_->enter());
    return submitted(context_->call().cuStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).handle(), 0));
  }
  Result<void> synchronize(uint64_t timeout_us) override {
    return wait_until_done(*context_, timeout_us, [&] { return context_->call().cuStreamQuery(stream_); });
  }

 private:
  Result<void> submitted(CUresult result) const { return context_->check(result, "work cannot be submitted"); }

  Result<void> may_hash(uint64_t chunk) const {
    if (context_->hash == nullptr)
      return fail(Code::kUnsupported, context_->properties.name, "this build has no kernels for the device");
    CKPT_ASSERT(chunk >= device::kMinChunk && chunk <= device::kMaxChunk && (chunk & (chunk - 1)) == 0);
    return context_->enter();
  }
  Result<CUdeviceptr> seen_by_device(std::span<ChunkHash> hashes) const {
    CUdeviceptr address = 0;
    const CUresult result = context_->call().cuMemHostGetDevicePointer_v2(&address, hashes.data(), 0);
    CKPT_TRY(context_->check(result, "the hashes are not in pinned memory"));
    return address;
  }
  Result<void> launch(CUfunction function, uint64_t chunks, void** parameters) {
    const auto blocks = static_cast<unsigned>(
        std::min<uint64_t>(chunks, static_cast<uint64_t>(context_->processors) * kBlocksPerProcessor));
    return submitted(
        context_->call().cuLaunchKernel(function, blocks, 1, 1, kKernelThreads, 1, 1, 0, stream_, parameters, nullptr));
  }

  Shared context_;
  CUstream stream_;
};

CUmemAllocationProp exportable_on(CUdevice device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return prop;
}

class CudaDevice final : public device::Device {
 public:
  explicit CudaDevice(Shared context) : context_(std::move(context)) {}

  const device::Properties& properties() const override { return context_->properties; }

  Result<device::MemoryInfo> memory_info() override {
    CKPT_TRY(context_->enter());
    size_t free = 0, total = 0;
    CKPT_TRY(context_->check(context_->call().cuMemGetInfo_v2(&free, &total), "the device does not tell what is free"));
    return device::MemoryInfo{free, total};
  }

  Result<std::unique_ptr<device::Buffer>> allocate(uint64_t bytes) override {
    CKPT_TRY(context_->enter());
    CKPT_TRY_ASSIGN(const uint64_t size, whole(bytes));
    const CUmemAllocationProp prop = exportable_on(context_->device);
    CUmemGenericAllocationHandle handle = 0;
    CKPT_TRY(context_->check(context_->call().cuMemCreate(&handle, size, &prop, 0), "none is to be had"));
    return map(handle, size);
  }

  Result<std::unique_ptr<device::Buffer>> import(int fd, uint64_t bytes) override {
    CKPT_TRY(context_->enter());
    CKPT_TRY_ASSIGN(const uint64_t size, whole(bytes));
    CUmemGenericAllocationHandle handle = 0;
    void* given = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    CKPT_TRY(context_->check(
        context_->call().cuMemImportFromShareableHandle(&handle, given, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "it cannot be imported"));
    return map(handle, size);
  }

  Result<std::unique_ptr<device::HostBuffer>> allocate_pinned(uint64_t bytes) override {
    CKPT_TRY(context_->enter());
    void* memory = nullptr;
    CKPT_TRY(
        context_->check(context_->call().cuMemHostAlloc(&memory, bytes, kMemHostAllocPortable | kMemHostAllocDeviceMap),
                        "no host memory can be pinned"));
    CUdeviceptr address = 0;
    const CUresult result = context_->call().cuMemHostGetDevicePointer_v2(&address, memory, 0);
    auto made =
        std::make_unique<CudaHostBuffer>(context_, MutableByteSpan(static_cast<std::byte*>(memory), bytes), address);
    CKPT_TRY(context_->check(result, "pinned memory has no device address"));
    return std::unique_ptr<device::HostBuffer>(std::move(made));
  }

  Result<std::unique_ptr<device::Stream>> create_stream() override {
    CKPT_TRY(context_->enter());
    int least = 0, greatest = 0;
    CKPT_TRY(context_->check(context_->call().cuCtxGetStreamPriorityRange(&least, &greatest), "no stream priorities"));
    CUstream stream = nullptr;
    CKPT_TRY(context_->check(context_->call().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, least),
                             "no stream"));
    return std::unique_ptr<device::Stream>(std::make_unique<CudaStream>(context_, stream));
  }

 private:
  Result<uint64_t> whole(uint64_t bytes) const {
    const uint64_t unit = context_->properties.granularity;
    if (bytes == 0 || bytes > UINT64_MAX - unit) return fail(Code::kUsage, kSubject, "a size that cannot be");
    return (bytes + unit - 1) / unit * unit;
  }
  /// Takes the handle over.
  Result<std::unique_ptr<device::Buffer>> map(CUmemGenericAllocationHandle handle, uint64_t size) {
    auto made = std::make_unique<CudaBuffer>(context_, handle, size);
    CKPT_TRY(made->map());
    return std::unique_ptr<device::Buffer>(std::move(made));
  }

  Shared context_;
};

Result<CUdevice> find_device(Driver& driver, const std::string& uuid) {
  int count = 0;
  CKPT_TRY(driver.check(driver.call().cuDeviceGetCount(&count), "the CUDA driver", "does not tell its devices"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    CUuuid found{};
    CKPT_TRY(driver.check(driver.call().cuDeviceGet(&device, ordinal), "the CUDA driver", "has no such device"));
    CKPT_TRY(driver.check(driver.call().cuDeviceGetUuid_v2(&found, device), "the CUDA driver", "tells no UUID"));
    if (uuid.empty() || uuid_text(found) == uuid) return device;
  }
  return fail(Code::kNotFound, uuid.empty() ? "a GPU" : uuid, "is not in this machine");
}

Result<void> describe(Context& context) {
  const Functions& call = context.call();
  char name[256] = "";
  CUuuid uuid{};
  size_t total = 0, granularity = 0;
  CKPT_TRY(context.check(call.cuDeviceGetName(name, sizeof(name), context.device), "the device has no name"));
  CKPT_TRY(context.check(call.cuDeviceGetUuid_v2(&uuid, context.device), "the device has no UUID"));
  CKPT_TRY(context.check(call.cuDeviceTotalMem_v2(&total, context.device), "the device does not tell its size"));
  CKPT_TRY(context.check(
      call.cuDeviceGetAttribute(&context.processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context.device),
      "the device does not tell its processors"));
  const CUmemAllocationProp prop = exportable_on(context.device);
  CKPT_TRY(context.check(call.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                         "the device has no virtual memory calls"));
  context.properties = {uuid_text(uuid), name, context.driver->version(), total,
                        std::max<uint64_t>(granularity, device::kMinChunk)};
  return {};
}

/// Kernels that this device cannot run are none.
void load_kernels(Context& context, const std::string& kernels) {
  const Functions& call = context.call();
  if (kernels.empty() || call.cuModuleLoadData(&context.module, kernels.data()) != CUDA_SUCCESS) {
    context.module = nullptr;
    return;
  }
  const bool both =
      call.cuModuleGetFunction(&context.hash, context.module, "ckpt_hash_chunks") == CUDA_SUCCESS &&
      call.cuModuleGetFunction(&context.copy_and_hash, context.module, "ckpt_copy_and_hash") == CUDA_SUCCESS;
  if (!both) context.hash = context.copy_and_hash = nullptr;
}

}  // namespace

Result<std::unique_ptr<device::Device>> open_device(std::shared_ptr<Driver> driver, const std::string& uuid,
                                                    const std::string& kernels) {
  CKPT_TRY(driver->initialise());
  auto context = std::make_shared<Context>();
  context->driver = driver;
  CKPT_TRY_ASSIGN(context->device, find_device(*driver, uuid));
  CKPT_TRY(context->check(driver->call().cuDevicePrimaryCtxRetain(&context->context, context->device),
                          "the device gives no context"));
  CKPT_TRY(context->enter());
  CKPT_TRY(describe(*context));
  load_kernels(*context, kernels);
  return std::unique_ptr<device::Device>(std::make_unique<CudaDevice>(std::move(context)));
}

}  // namespace ckpt::cuda
