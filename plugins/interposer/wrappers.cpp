// What is called instead of the driver's functions: those that only pass the API lock are made from the table of names,
// those that keep the books are written out.
#include <array>
#include <cstring>
#include <utility>

#include "plugins/interposer/agent.h"
#include "plugins/interposer/allocations.h"
#include "plugins/interposer/contexts.h"
#include "plugins/interposer/api_lock.h"
#include "plugins/interposer/guarded_calls.h"
#include "plugins/interposer/kernels.h"
#include "plugins/interposer/physical.h"
#include "plugins/interposer/watch.h"

namespace ckpt::interposer {

namespace {

// ---- Through the API lock, words as they come ----

template <size_t>
using WordAt = Word;

template <size_t Index, class Sequence>
struct Guarded;
template <size_t Index, size_t... I>
struct Guarded<Index, std::index_sequence<I...>> {
  static CUresult call(WordAt<I>... words) {
    bool watched;
    ThreadState* self = enter(watched);
    if constexpr (shape_of(kNames[Index].function) != Shape::kNothing) {
      if (watched) [[unlikely]] {
        const Word all[] = {words...};
        before_call(self, Index, all);
      }
    }
    const CUresult result = reinterpret_cast<CUresult (*)(WordAt<I>...)>(g_real[Index])(words...);
    leave(self);
    return result;
  }
};

template <size_t Index>
constexpr void* guarded() {
  constexpr Name name = kNames[Index];
  if constexpr (is_guarded(name.function) && name.words >= 0) {
    return reinterpret_cast<void*>(&Guarded<Index, std::make_index_sequence<static_cast<size_t>(name.words)>>::call);
  } else {
    return nullptr;
  }
}

template <size_t... Index>
std::array<void*, kNameCount> guarded_table(std::index_sequence<Index...>) {
  return {guarded<Index>()...};
}

// ---- Written out ----

CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

CUresult init(unsigned flags) {
  const CUresult result = drv::cuInit(flags);
  if (result == CUDA_SUCCESS) start_agent();
  return result;
}

CUresult get_proc_address_v2(const char* symbol, void** function, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const CUresult result = drv::cuGetProcAddress_v2(symbol, function, version, flags, status);
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr && *function != nullptr) {
    *function = instead_of(symbol, *function, flags);
  }
  return result;
}

constexpr size_t kGetProcAddress = index_of("cuGetProcAddress");
CUresult get_proc_address(const char* symbol, void** function, int version, uint64_t flags) {
  const CUresult result = real<kGetProcAddress>(symbol, function, version, flags);
  if (result == CUDA_SUCCESS && symbol != nullptr && function != nullptr && *function != nullptr) {
    *function = instead_of(symbol, *function, flags);
  }
  return result;
}

CUresult mem_alloc(CUdeviceptr* out, size_t size) {
  Passage passage;
  if (allocate_owned(out, size) == CUDA_SUCCESS) return CUDA_SUCCESS;
  const CUresult result = drv::cuMemAlloc_v2(out, size);
  if (result == CUDA_SUCCESS) note(Kind::kNative, *out, size);
  return result;
}

CUresult mem_alloc_pitch(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  Passage passage;
  constexpr size_t kPitch = 512;  // what devices since Fermi align rows to
  const size_t row = width > SIZE_MAX - kPitch ? 0 : (width + kPitch - 1) / kPitch * kPitch;
  const bool sound = (element == 4 || element == 8 || element == 16) && row != 0 && height != 0 &&
                     height <= SIZE_MAX / row && pitch != nullptr;
  if (sound && allocate_owned(out, row * height) == CUDA_SUCCESS) {
    *pitch = row;
    return CUDA_SUCCESS;
  }
  const CUresult result = drv::cuMemAllocPitch_v2(out, pitch, width, height, element);
  if (result == CUDA_SUCCESS) note(Kind::kNative, *out, *pitch * height);
  return result;
}

/// The end of what is noted at `base`, by a call of the driver: first it goes from the table, since as soon as the
/// driver has the address back another thread may get it and note it.
template <class Call>
CUresult end_noted(CUdeviceptr base, Call call) {
  const auto noted = take(base);
  const CUresult result = call();
  if (result != CUDA_SUCCESS && noted) put_back(*noted);
  return result;
}

CUresult free_ours(const Passage& passage, CUdeviceptr base) {
  const auto taken = take(base);
  if (!taken) return CUDA_ERROR_INVALID_VALUE;  // another thread was faster
  if (passage.watched()) {
    before_free(*taken);
    filled(taken->id);
  }
  return free_owned(*taken);
}

CUresult mem_free(CUdeviceptr base) {
  Passage passage;
  const auto found = base == 0 ? std::nullopt : find(base);
  if (found && is_mapping(*found)) return drv::cuMemFree_v2(base);  // which refuses
  if (!found || found->base != base || found->kind != Kind::kOwned)
    return end_noted(base, [&] { return drv::cuMemFree_v2(base); });
  return free_ours(passage, base);
}

CUresult mem_alloc_managed(CUdeviceptr* out, size_t size, unsigned flags) {
  Passage passage;
  const CUresult result = drv::cuMemAllocManaged(out, size, flags);
  if (result == CUDA_SUCCESS) note(Kind::kManaged, *out, size);
  return result;
}

template <size_t Index>
CUresult mem_alloc_async(CUdeviceptr* out, size_t size, CUstream stream) {
  Passage passage;
  const CUresult result = real<Index>(out, size, stream);
  if (result == CUDA_SUCCESS) note(Kind::kPool, *out, size);
  return result;
}

template <size_t Index>
CUresult mem_alloc_from_pool(CUdeviceptr* out, size_t size, CUmemoryPool pool, CUstream stream) {
  Passage passage;
  const CUresult result = real<Index>(out, size, pool, stream);
  if (result == CUDA_SUCCESS) note(Kind::kPool, *out, size);
  return result;
}

/// Stream 0 of a per-thread form is another one.
template <bool PerThread>
CUstream meant(CUstream stream) {
  return PerThread && stream == nullptr ? kStreamPerThread : stream;
}

/// False also for the stream that waits for all: asked for its work in the middle of a capture it spoils that.
bool is_out_of_captures(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return !captures_active() ||
         (drv::cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE);
}

/// Memory of ours ends here and now: the stream's work is waited for, where the driver would go on.
template <bool PerThread>
CUresult mem_free_async(CUdeviceptr base, CUstream given) {
  Passage passage;
  const CUstream stream = meant<PerThread>(given);
  const auto found = base == 0 ? std::nullopt : find(base);
  if (found && found->base == base && found->kind == Kind::kOwned && !is_mapping(*found) &&
      is_out_of_captures(stream)) {
    if (const CUresult result = drv::cuStreamSynchronize(stream); result != CUDA_SUCCESS) return result;
    return free_ours(passage, base);
  }
  if (found && (found->kind == Kind::kOwned || is_mapping(*found)))
    return drv::cuMemFreeAsync(base, stream);  // which refuses
  return end_noted(base, [&] { return drv::cuMemFreeAsync(base, stream); });
}

CUresult mem_host_alloc(void** out, size_t size, unsigned flags) {
  Passage passage;
  const CUresult result = drv::cuMemHostAlloc(out, size, flags);
  if (result == CUDA_SUCCESS) note(Kind::kPinned, address(*out), size);
  return result;
}

CUresult mem_alloc_host(void** out, size_t size) {
  Passage passage;
  const CUresult result = drv::cuMemAllocHost_v2(out, size);
  if (result == CUDA_SUCCESS) note(Kind::kPinned, address(*out), size);
  return result;
}

CUresult mem_free_host(void* base) {
  Passage passage;
  return end_noted(address(base), [&] { return drv::cuMemFreeHost(base); });
}

CUresult mem_host_register(void* base, size_t size, unsigned flags) {
  Passage passage;
  const CUresult result = drv::cuMemHostRegister_v2(base, size, flags);
  if (result == CUDA_SUCCESS) note(Kind::kPinned, address(base), size);
  return result;
}

CUresult mem_host_unregister(void* base) {
  Passage passage;
  return end_noted(address(base), [&] { return drv::cuMemHostUnregister(base); });
}

CUresult mem_map(CUdeviceptr base, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags) {
  Passage passage;
  const CUresult result = drv::cuMemMap(base, size, offset, real_handle(handle, false), flags);
  if (result == CUDA_SUCCESS) physical_mapped(handle, base, size, offset);
  return result;
}

CUresult mem_unmap(CUdeviceptr base, size_t size) {
  Passage passage;
  if (passage.watched()) {
    for (const Allocation& owned : owned_in(base, size)) before_free(owned);
  }
  const CUresult result = drv::cuMemUnmap(base, size);
  if (result != CUDA_SUCCESS) return result;
  for (const Allocation& gone : take_range(base, size)) {
    if (gone.program_handle != 0) physical_unmapped(gone.program_handle);
    if (passage.watched()) filled(gone.id);
  }
  return result;
}

CUresult mem_create(CUmemGenericAllocationHandle* out, size_t size, const CUmemAllocationProp* prop,
                    unsigned long long flags) {
  Passage passage;
  if (create_physical(out, size, prop, flags) == CUDA_SUCCESS) return CUDA_SUCCESS;
  return drv::cuMemCreate(out, size, prop, flags);
}

CUresult mem_release(CUmemGenericAllocationHandle handle) {
  Passage passage;
  return release_physical(handle) ? CUDA_SUCCESS : drv::cuMemRelease(handle);
}

CUresult mem_set_access(CUdeviceptr base, size_t size, const CUmemAccessDesc* access, size_t count) {
  Passage passage;
  const CUresult result = drv::cuMemSetAccess(base, size, access, count);
  if (result == CUDA_SUCCESS) access_set(base, size, access, count);
  return result;
}

// What only asks waits at the API lock, too: memory is away, and the driver would answer for an address that it does
// not know, or a handle that it has no more.

CUresult mem_retain_handle(CUmemGenericAllocationHandle* out, void* at) {
  Passage passage;
  const auto found = find(address(at));
  if (found && found->kind == Kind::kOwned && !is_mapping(*found))
    return CUDA_ERROR_INVALID_VALUE;  // as of cuMemAlloc's memory
  if (out != nullptr && retain_physical(address(at), out)) return CUDA_SUCCESS;
  return drv::cuMemRetainAllocationHandle(out, at);
}

CUresult mem_export(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                    unsigned long long flags) {
  Passage passage;
  return drv::cuMemExportToShareableHandle(out, real_handle(handle, true), type, flags);
}

CUresult mem_import(CUmemGenericAllocationHandle* out, void* from, CUmemAllocationHandleType type) {
  Passage passage;
  const CUresult result = drv::cuMemImportFromShareableHandle(out, from, type);
  if (result == CUDA_SUCCESS) physical_imported(*out);
  return result;
}

CUresult pool_import_pointer(CUdeviceptr* out, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  Passage passage;
  const CUresult result = drv::cuMemPoolImportPointer(out, pool, data);
  if (result == CUDA_SUCCESS) note(Kind::kForeign, *out, 1);
  return result;
}

CUresult mem_handle_properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  Passage passage;
  const CUresult result = drv::cuMemGetAllocationPropertiesFromHandle(prop, real_handle(handle, false));
  if (result == CUDA_SUCCESS) restore_properties(handle, prop);
  return result;
}

/// The memory's handle goes among words: who binds which device or place of what to it stands before, the rest behind.
template <size_t Index, class... Before>
struct Bind {
  static CUresult call(Before... before, CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                       unsigned long long flags) {
    Passage passage;
    return real<Index>(before..., real_handle(memory, true), offset, size, flags);
  }
};

CUresult ipc_open_mem(CUdeviceptr* out, CUipcMemHandle handle, unsigned flags) {
  Passage passage;
  const CUresult result = drv::cuIpcOpenMemHandle_v2(out, handle, flags);
  if (result == CUDA_SUCCESS) note(Kind::kForeign, *out, 1);
  return result;
}

CUresult ipc_close_mem(CUdeviceptr base) {
  Passage passage;
  return end_noted(base, [&] { return drv::cuIpcCloseMemHandle(base); });
}

/// As for memory of cuMemAlloc: the size that was asked for, not the size that is mapped.
CUresult get_address_range(CUdeviceptr* base, size_t* size, CUdeviceptr at) {
  Passage passage;
  const CUresult result = drv::cuMemGetAddressRange_v2(base, size, at);
  if (result != CUDA_SUCCESS) return result;
  const auto found = find(at);
  if (!found || found->kind != Kind::kOwned) return result;
  if (at - found->base >= found->size) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->base;
  if (size != nullptr) *size = found->size;
  return result;
}

void as_of_native(void* data, CUpointer_attribute attribute, const Allocation& owned) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(data) = owned.context; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(data) = owned.base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(data) = owned.size; break;
    default: break;
  }
}

CUresult pointer_get_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr at) {
  Passage passage;
  const CUresult result = drv::cuPointerGetAttribute(data, attribute, at);
  const bool of_range = attribute == CU_POINTER_ATTRIBUTE_CONTEXT ||
                        attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                        attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE;
  if (!of_range || data == nullptr) return result;
  const auto found = find(at);
  if (!found || found->kind != Kind::kOwned) return result;
  // Mapped memory has no context of its own: the driver may refuse that question.
  if (result != CUDA_SUCCESS && attribute != CU_POINTER_ATTRIBUTE_CONTEXT) return result;
  as_of_native(data, attribute, *found);
  return CUDA_SUCCESS;
}

CUresult pointer_get_attributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr at) {
  Passage passage;
  const CUresult result = drv::cuPointerGetAttributes(count, attributes, data, at);
  if (result != CUDA_SUCCESS) return result;
  const auto found = find(at);
  if (!found || found->kind != Kind::kOwned) return result;
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] != nullptr) as_of_native(data[i], attributes[i], *found);
  }
  return result;
}

template <size_t Index>
CUresult ctx_create(CUcontext* out, unsigned flags, CUdevice device) {
  Passage passage;
  const CUresult result = real<Index>(out, flags, device);
  if (result == CUDA_SUCCESS) context_made(*out, device, false);
  return result;
}

template <size_t Index>
CUresult ctx_create_v3(CUcontext* out, void* affinity, int count, unsigned flags, CUdevice device) {
  Passage passage;
  const CUresult result = real<Index>(out, affinity, count, flags, device);
  if (result == CUDA_SUCCESS) context_made(*out, device, false);
  return result;
}

CUresult ctx_create_v4(CUcontext* out, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
  Passage passage;
  const CUresult result = drv::cuCtxCreate_v4(out, parameters, flags, device);
  if (result == CUDA_SUCCESS) context_made(*out, device, false);
  return result;
}

/// While it is there: copies need it.
void save_context(const Passage& passage, CUcontext context) {
  if (!passage.watched()) return;
  for (const Allocation& a : all_allocations()) {
    if (a.kind == Kind::kOwned && !is_mapping(a) && a.context == context) before_free(a);
  }
}

void end_context(const Passage& passage, CUcontext context) {
  context_ended(context);
  for (uint64_t gone : forget_context(context)) {
    if (passage.watched()) filled(gone);
  }
}

CUresult ctx_destroy(CUcontext context) {
  Passage passage;
  save_context(passage, context);
  const CUresult result = drv::cuCtxDestroy_v2(context);
  if (result == CUDA_SUCCESS) end_context(passage, context);
  return result;
}

CUresult primary_retain(CUcontext* out, CUdevice device) {
  Passage passage;
  const CUresult result = drv::cuDevicePrimaryCtxRetain(out, device);
  if (result == CUDA_SUCCESS) context_made(*out, device, true);
  return result;
}

template <size_t Index>
CUresult primary_end(CUdevice device) {
  Passage passage;
  const CUcontext context = primary_context(device);
  if (context != nullptr) save_context(passage, context);
  const CUresult result = real<Index>(device);
  unsigned flags = 0;
  int active = 1;
  if (result == CUDA_SUCCESS && context != nullptr &&
      drv::cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active == 0) {
    end_context(passage, context);
  }
  return result;
}

int device_of(CUcontext context) {
  int device = -1;
  if (InContext scope(context); scope) drv::cuCtxGetDevice(&device);
  return device;
}

template <bool On>
CUresult peer_access(CUcontext peer) {
  Passage passage;
  int current = -1;
  CUresult result = CUDA_SUCCESS;
  if constexpr (On) {
    constexpr size_t kIndex = index_of("cuCtxEnablePeerAccess");
    result = real<kIndex>(peer, 0u);
  } else {
    constexpr size_t kIndex = index_of("cuCtxDisablePeerAccess");
    result = real<kIndex>(peer);
  }
  if (result == CUDA_SUCCESS && drv::cuCtxGetDevice(&current) == CUDA_SUCCESS)
    enable_peer(device_of(peer), current, On);
  return result;
}
CUresult enable_peer_access(CUcontext peer, unsigned flags) {
  return flags == 0 ? peer_access<true>(peer) : drv::cuCtxEnablePeerAccess(peer, flags);
}

template <size_t Index, bool PerThread, class... A>
CUresult begin_capture(CUstream stream, A... rest) {
  Passage passage;
  const CUresult result = real<Index>(stream, rest...);
  if (result == CUDA_SUCCESS) capture_began(meant<PerThread>(stream));
  return result;
}

template <size_t Index, bool PerThread, class... A>
CUresult end_capture(CUstream stream, A... rest) {
  const CUresult result = real<Index>(stream, rest...);
  if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) capture_ended(meant<PerThread>(stream));
  Passage passage;  // not before: the API is locked once captures have ended
  free_deferred();
  return result;
}

template <size_t Index>
CUresult stream_destroy(CUstream stream) {
  capture_ended(stream);
  return real<Index>(stream);
}

// ---- The table ----

using Table = std::array<void*, kNameCount>;

template <class F>
void put(Table& table, std::string_view function, F wrapper) {
  if (const size_t index = index_of(function); index < kNameCount) table[index] = reinterpret_cast<void*>(wrapper);
}

void put_memory(Table& table) {
  put(table, "cuMemAlloc_v2", mem_alloc);
  put(table, "cuMemAllocPitch_v2", mem_alloc_pitch);
  put(table, "cuMemFree_v2", mem_free);
  put(table, "cuMemAllocManaged", mem_alloc_managed);
  put(table, "cuMemAllocAsync", mem_alloc_async<index_of("cuMemAllocAsync")>);
  put(table, "cuMemAllocAsync_ptsz", mem_alloc_async<index_of("cuMemAllocAsync_ptsz")>);
  put(table, "cuMemAllocFromPoolAsync", mem_alloc_from_pool<index_of("cuMemAllocFromPoolAsync")>);
  put(table, "cuMemAllocFromPoolAsync_ptsz", mem_alloc_from_pool<index_of("cuMemAllocFromPoolAsync_ptsz")>);
  put(table, "cuMemFreeAsync", mem_free_async<false>);
  put(table, "cuMemFreeAsync_ptsz", mem_free_async<true>);
  put(table, "cuMemHostAlloc", mem_host_alloc);
  put(table, "cuMemAllocHost_v2", mem_alloc_host);
  put(table, "cuMemFreeHost", mem_free_host);
  put(table, "cuMemHostRegister_v2", mem_host_register);
  put(table, "cuMemHostUnregister", mem_host_unregister);
  put(table, "cuMemMap", mem_map);
  put(table, "cuMemUnmap", mem_unmap);
  put(table, "cuMemCreate", mem_create);
  put(table, "cuMemRelease", mem_release);
  put(table, "cuMemSetAccess", mem_set_access);
  put(table, "cuMemRetainAllocationHandle", mem_retain_handle);
  put(table, "cuMemExportToShareableHandle", mem_export);
  put(table, "cuMemImportFromShareableHandle", mem_import);
  put(table, "cuMemPoolImportPointer", pool_import_pointer);
  put(table, "cuMemGetAllocationPropertiesFromHandle", mem_handle_properties);
  put(table, "cuMulticastBindMem", Bind<index_of("cuMulticastBindMem"), Word, size_t>::call);
  put(table, "cuMulticastBindMem_v2", Bind<index_of("cuMulticastBindMem_v2"), Word, CUdevice, size_t>::call);
  put(table, "cuLogicalEndpointBindMem", Bind<index_of("cuLogicalEndpointBindMem"), Word, CUdevice, size_t>::call);
  put(table, "cuIpcOpenMemHandle_v2", ipc_open_mem);
  put(table, "cuIpcCloseMemHandle", ipc_close_mem);
  put(table, "cuMemGetAddressRange_v2", get_address_range);
  put(table, "cuPointerGetAttribute", pointer_get_attribute);
  put(table, "cuPointerGetAttributes", pointer_get_attributes);
}

void put_contexts(Table& table) {
  put(table, "cuInit", init);
  put(table, "cuGetProcAddress", get_proc_address);
  put(table, "cuGetProcAddress_v2", get_proc_address_v2);
  put(table, "cuCtxCreate_v2", ctx_create<index_of("cuCtxCreate_v2")>);
  put(table, "cuCtxCreate_v3", ctx_create_v3<index_of("cuCtxCreate_v3")>);
  put(table, "cuCtxCreate_v4", ctx_create_v4);
  put(table, "cuCtxDestroy_v2", ctx_destroy);
  put(table, "cuDevicePrimaryCtxRetain", primary_retain);
  put(table, "cuDevicePrimaryCtxRelease", primary_end<index_of("cuDevicePrimaryCtxRelease")>);
  put(table, "cuDevicePrimaryCtxRelease_v2", primary_end<index_of("cuDevicePrimaryCtxRelease_v2")>);
  put(table, "cuDevicePrimaryCtxReset", primary_end<index_of("cuDevicePrimaryCtxReset")>);
  put(table, "cuDevicePrimaryCtxReset_v2", primary_end<index_of("cuDevicePrimaryCtxReset_v2")>);
  put(table, "cuCtxEnablePeerAccess", enable_peer_access);
  put(table, "cuCtxDisablePeerAccess", peer_access<false>);
}

void put_libraries(Table& table) {
  put(table, "cuLibraryGetKernel", library_get_kernel);
  put(table, "cuLibraryEnumerateKernels", library_enumerate_kernels);
  put(table, "cuLibraryUnload", library_unload);
}

void put_captures(Table& table) {
  put(table, "cuStreamBeginCapture", begin_capture<index_of("cuStreamBeginCapture"), false>);
  put(table, "cuStreamBeginCapture_ptsz", begin_capture<index_of("cuStreamBeginCapture_ptsz"), true>);
  put(table, "cuStreamBeginCapture_v2", begin_capture<index_of("cuStreamBeginCapture_v2"), false, CUstreamCaptureMode>);
  put(table, "cuStreamBeginCapture_v2_ptsz",
      begin_capture<index_of("cuStreamBeginCapture_v2_ptsz"), true, CUstreamCaptureMode>);
  put(table, "cuStreamBeginCaptureToGraph",
      begin_capture<index_of("cuStreamBeginCaptureToGraph"), false, Word, Word, Word, Word, CUstreamCaptureMode>);
  put(table, "cuStreamBeginCaptureToGraph_ptsz",
      begin_capture<index_of("cuStreamBeginCaptureToGraph_ptsz"), true, Word, Word, Word, Word, CUstreamCaptureMode>);
  put(table, "cuStreamBeginRecaptureToGraph",
      begin_capture<index_of("cuStreamBeginRecaptureToGraph"), false, CUstreamCaptureMode, Word, Word, Word>);
  put(table, "cuStreamBeginRecaptureToGraph_ptsz",
      begin_capture<index_of("cuStreamBeginRecaptureToGraph_ptsz"), true, CUstreamCaptureMode, Word, Word, Word>);
  put(table, "cuStreamBeginCaptureToCig", begin_capture<index_of("cuStreamBeginCaptureToCig"), false, Word>);
  put(table, "cuStreamBeginCaptureToCig_ptsz", begin_capture<index_of("cuStreamBeginCaptureToCig_ptsz"), true, Word>);
  put(table, "cuStreamEndCaptureToCig", end_capture<index_of("cuStreamEndCaptureToCig"), false>);
  put(table, "cuStreamEndCaptureToCig_ptsz", end_capture<index_of("cuStreamEndCaptureToCig_ptsz"), true>);
  put(table, "cuStreamDestroy", stream_destroy<index_of("cuStreamDestroy")>);
  put(table, "cuStreamDestroy_v2", stream_destroy<index_of("cuStreamDestroy_v2")>);
  put(table, "cuStreamEndCapture", end_capture<index_of("cuStreamEndCapture"), false, CUgraph*>);
  put(table, "cuStreamEndCapture_ptsz", end_capture<index_of("cuStreamEndCapture_ptsz"), true, CUgraph*>);
}

const Table& wrappers() {
  static const Table table = [] {
    Table made = guarded_table(std::make_index_sequence<kNameCount>());
    put_memory(made);
    put_contexts(made);
    put_captures(made);
    put_libraries(made);
    return made;
  }();
  return table;
}

}  // namespace

void* wrapper_of(size_t index) { return wrappers()[index]; }

}  // namespace ckpt::interposer
