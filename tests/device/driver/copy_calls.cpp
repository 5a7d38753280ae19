// Calls: copies and fills. All of them are rows of bytes, from host or device to host or device.
#include <string.h>
#include <sys/mman.h>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

struct Rows {
  uint64_t destination, source;
  size_t width, height, destination_pitch, source_pitch;
};

char* host_view(uint64_t address) { return is_device(address) ? shadow(address) : reinterpret_cast<char*>(address); }

size_t extent(size_t width, size_t height, size_t pitch) { return height == 0 ? 0 : pitch * (height - 1) + width; }

bool page_locked(uint64_t address) {
  std::lock_guard guard(lock());
  return is_device(address) || host_range_at(reinterpret_cast<void*>(address)) != nullptr;
}

void run(const Rows& rows) {
  for (size_t row = 0; row < rows.height; ++row)
    ::memmove(host_view(rows.destination) + row * rows.destination_pitch,
              host_view(rows.source) + row * rows.source_pitch, rows.width);
}

bool fine(const Rows& rows) {
  return rows.width <= rows.destination_pitch && rows.width <= rows.source_pitch &&
         reachable(rows.source, extent(rows.width, rows.height, rows.source_pitch), PROT_READ) &&
         reachable(rows.destination, extent(rows.width, rows.height, rows.destination_pitch), PROT_READ | PROT_WRITE);
}

/// Pageable sources are read before the call returns, pageable destinations written.
CUresult copy(Rows rows, CUstream handle, bool wait) {
  auto stream = stream_of(handle);
  if (stream == nullptr) return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  if (rows.width == 0 || rows.height == 0) return CUDA_SUCCESS;
  if (!fine(rows)) return CUDA_ERROR_INVALID_VALUE;
  if (wait && forbidden_in_capture() != CUDA_SUCCESS) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::shared_ptr<char[]> staged;
  bool capturing = stream->capture != nullptr;
  if (!wait && !capturing && !page_locked(rows.source)) {
    size_t size = extent(rows.width, rows.height, rows.source_pitch);
    staged = std::make_shared<char[]>(size);
    ::memcpy(staged.get(), host_view(rows.source), size);
    rows.source = reinterpret_cast<uint64_t>(staged.get());
  }
  CUresult result = submit(stream, CU_GRAPH_NODE_TYPE_MEMCPY, [rows, staged] { run(rows); },
                           {rows.source, rows.destination});
  if (result == CUDA_SUCCESS && !capturing && (wait || !page_locked(rows.destination))) wait_for(stream);
  return result;
}

CUresult copy(CUdeviceptr destination, CUdeviceptr source, size_t size, CUstream handle, bool wait) {
  return copy({destination, source, size, 1, size, size}, handle, wait);
}

uint64_t place(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
}

CUresult rows_of(const CUDA_MEMCPY2D* p, Rows& rows) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY || p->dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return CUDA_ERROR_NOT_SUPPORTED;
  rows.source_pitch = p->srcPitch != 0 ? p->srcPitch : p->WidthInBytes;
  rows.destination_pitch = p->dstPitch != 0 ? p->dstPitch : p->WidthInBytes;
  rows.source = place(p->srcMemoryType, p->srcHost, p->srcDevice) + p->srcY * rows.source_pitch + p->srcXInBytes;
  rows.destination =
      place(p->dstMemoryType, p->dstHost, p->dstDevice) + p->dstY * rows.destination_pitch + p->dstXInBytes;
  rows.width = p->WidthInBytes;
  rows.height = p->Height;
  return CUDA_SUCCESS;
}

CUresult copy_2d(const CUDA_MEMCPY2D* p, CUstream handle, bool wait) {
  Rows rows;
  if (CUresult bad = rows_of(p, rows)) return bad;
  return copy(rows, handle, wait);
}

CUresult layer(const CUDA_MEMCPY3D* p, size_t z, Rows& rows) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY2D flat{};
  flat.srcXInBytes = p->srcXInBytes, flat.srcY = p->srcY + (p->srcZ + z) * p->srcHeight;
  flat.srcMemoryType = p->srcMemoryType, flat.srcHost = p->srcHost, flat.srcDevice = p->srcDevice,
  flat.srcPitch = p->srcPitch;
  flat.dstXInBytes = p->dstXInBytes, flat.dstY = p->dstY + (p->dstZ + z) * p->dstHeight;
  flat.dstMemoryType = p->dstMemoryType, flat.dstHost = p->dstHost, flat.dstDevice = p->dstDevice,
  flat.dstPitch = p->dstPitch;
  flat.WidthInBytes = p->WidthInBytes, flat.Height = p->Height;
  return rows_of(&flat, rows);
}

CUresult copy_3d(const CUDA_MEMCPY3D* p, CUstream handle, bool wait) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t z = 0; z < p->Depth; ++z) {
    Rows rows;
    if (CUresult bad = layer(p, z, rows)) return bad;
    if (CUresult bad = copy(rows, handle, wait)) return bad;
  }
  return CUDA_SUCCESS;
}

template <class T>
Work make_fill(CUdeviceptr destination, size_t pitch, T value, size_t width, size_t height) {
  return [=] {
    for (size_t row = 0; row < height; ++row) {
      char* at = host_view(destination) + row * pitch;
      for (size_t i = 0; i < width; ++i) ::memcpy(at + i * sizeof(T), &value, sizeof(T));
    }
  };
}

template <class T>
CUresult fill(CUdeviceptr destination, size_t pitch, T value, size_t width, size_t height, CUstream handle, bool wait) {
  auto stream = stream_of(handle);
  if (stream == nullptr) return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  if (destination % sizeof(T) != 0 ||
      !reachable(destination, extent(width * sizeof(T), height, pitch), PROT_READ | PROT_WRITE))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result =
      submit(stream, CU_GRAPH_NODE_TYPE_MEMSET, make_fill(destination, pitch, value, width, height), {destination});
  if (result == CUDA_SUCCESS && wait) wait_for(stream);
  return result;
}

}  // namespace

Work make_memset(const CUDA_MEMSET_NODE_PARAMS& p) {
  size_t pitch = p.height > 1 ? p.pitch : p.width * p.elementSize;
  if (p.width == 0 || p.height == 0) return {};
  if (!reachable(p.dst, extent(p.width * p.elementSize, p.height, pitch), PROT_READ | PROT_WRITE)) return {};
  switch (p.elementSize) {
    case 1: return make_fill(p.dst, pitch, static_cast<uint8_t>(p.value), p.width, p.height);
    case 2: return make_fill(p.dst, pitch, static_cast<uint16_t>(p.value), p.width, p.height);
    case 4: return make_fill(p.dst, pitch, p.value, p.width, p.height);
    default: return {};
  }
}

Work make_copy(const CUDA_MEMCPY3D& p) {
  std::vector<Rows> all(p.Depth);
  for (size_t z = 0; z < p.Depth; ++z)
    if (layer(&p, z, all[z]) != CUDA_SUCCESS || !fine(all[z])) return {};
  return [all] {
    for (const Rows& rows : all) run(rows);
  };
}

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  CKPT_STANDIN_ENTER();
  return copy(dst, src, n, nullptr, true);
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
  CKPT_STANDIN_ENTER();
  return copy(dst, src, n, stream, false);
}
CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n) {
  CKPT_STANDIN_ENTER();
  return copy(dst, src, n, nullptr, true);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t n, CUstream stream) {
  CKPT_STANDIN_ENTER();
  return copy(dst, src, n, stream, false);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t n) {
  CKPT_STANDIN_ENTER();
  return is_device(dst) ? copy(dst, reinterpret_cast<CUdeviceptr>(src), n, nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t n) {
  CKPT_STANDIN_ENTER();
  return is_device(src) ? copy(reinterpret_cast<CUdeviceptr>(dst), src, n, nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
  CKPT_STANDIN_ENTER();
  return copy(dst, src, n, nullptr, true);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, CUstream stream) {
  CKPT_STANDIN_ENTER();
  return is_device(dst) ? copy(dst, reinterpret_cast<CUdeviceptr>(src), n, stream, false) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, CUstream stream) {
  CKPT_STANDIN_ENTER();
  return is_device(src) ? copy(reinterpret_cast<CUdeviceptr>(dst), src, n, stream, false) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
  CKPT_STANDIN_ENTER();
  return copy(dst, src, n, stream, false);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* p) {
  CKPT_STANDIN_ENTER();
  return copy_2d(p, nullptr, true);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* p) {
  CKPT_STANDIN_ENTER();
  return copy_2d(p, nullptr, true);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* p, CUstream stream) {
  CKPT_STANDIN_ENTER();
  return copy_2d(p, stream, false);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* p) {
  CKPT_STANDIN_ENTER();
  return copy_3d(p, nullptr, true);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* p, CUstream stream) {
  CKPT_STANDIN_ENTER();
  return copy_3d(p, stream, false);
}

#define FILLS(bits, type)                                                                                   \
  CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t n) {                                    \
    CKPT_STANDIN_ENTER();                                                                                   \
    return fill(dst, n * sizeof(type), value, n, 1, nullptr, true);                                         \
  }                                                                                                         \
  CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t n, CUstream stream) {                 \
    CKPT_STANDIN_ENTER();                                                                                   \
    return fill(dst, n * sizeof(type), value, n, 1, stream, false);                                         \
  }                                                                                                         \
  CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height) { \
    CKPT_STANDIN_ENTER();                                                                                   \
    return fill(dst, pitch, value, width, height, nullptr, true);                                           \
  }                                                                                                         \
  CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, \
                                    CUstream stream) {                                                      \
    CKPT_STANDIN_ENTER();                                                                                   \
    return fill(dst, pitch, value, width, height, stream, false);                                           \
  }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)

}  // namespace ckpt::cuda::api
