// Which functions pass the API lock, and what their arguments say about device memory.
#pragma once

#include <string_view>

#include "plugins/interposer/names.h"

namespace ckpt::interposer {

/// How the words of a call are read (access.cpp).
enum class Shape : unsigned char {
  kNothing,    ///< touches no device memory: allocations, host functions, waits
  kKernel,     ///< cuLaunchKernel and cuLaunchCooperativeKernel
  kKernelEx,   ///< cuLaunchKernelEx
  kDeviceToDevice, kHostToDevice, kDeviceToHost, kUnified, kPeer,  ///< one run of bytes
  kFill, kFill2D,                                                  ///< memsets
  kCopy2D, kCopy3D,                                                ///< structures
  kWriteValue,
  kUnknown,  ///< graphs, batches, arrays, what was there before CUDA 4: may touch anything
};

constexpr bool has_prefix(std::string_view function, std::initializer_list<std::string_view> prefixes) {
  for (std::string_view prefix : prefixes) {
    if (function.starts_with(prefix)) return true;
  }
  return false;
}

/// What submits work, what changes which memory and contexts there are, and what asks the driver about memory that may
/// be away.
constexpr bool is_guarded(std::string_view function) {
  return has_prefix(function, {"cuLaunch",
                               "cuGraphLaunch",
                               "cuGraphUpload",
                               "cuMemcpy",
                               "cuMemset",
                               "cuStreamBatchMemOp",
                               "cuStreamWriteValue",
                               "cuStreamWaitValue",
                               "cuStreamAddCallback",
                               "cuStreamBeginCapture",
                               "cuMemAlloc",
                               "cuMemFree",
                               "cuMemHostAlloc",
                               "cuMemHostRegister",
                               "cuMemHostUnregister",
                               "cuMemCreate",
                               "cuMemMap",
                               "cuMemUnmap",
                               "cuMemSetAccess",
                               "cuMemRelease",
                               "cuMemAddress",
                               "cuMemImport",
                               "cuMemPrefetch",
                               "cuMemDiscard",
                               "cuMemBatchDecompress",
                               "cuMemPoolCreate",
                               "cuMemPoolDestroy",
                               "cuMemPoolTrim",
                               "cuMemPoolImport",
                               "cuCtxCreate",
                               "cuCtxDestroy",
                               "cuDevicePrimaryCtxRe",
                               "cuArrayCreate",
                               "cuArray3DCreate",
                               "cuArrayDestroy",
                               "cuMipmappedArrayCreate",
                               "cuMipmappedArrayDestroy",
                               "cuMulticast",
                               "cuLogicalEndpoint",
                               "cuFabricCpy",
                               "cuGraphicsMap",
                               "cuGraphicsUnmap",
                               "cuGraphInstantiate",
                               "cuGraphExecDestroy",
                               "cuModuleLoad",
                               "cuModuleUnload",
                               "cuLibraryLoad",
                               "cuLibraryUnload",
                               "cuIpcOpenMem",
                               "cuIpcCloseMem",
                               "cuMemGetAccess",
                               "cuMemGetHandleForAddressRange",
                               "cuPointerSetAttribute"});
}

constexpr Shape shape_of(std::string_view f) {
  for (std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (f.ends_with(suffix)) f.remove_suffix(suffix.size());
  }
  if (f == "cuLaunchKernel" || f == "cuLaunchCooperativeKernel") return Shape::kKernel;
  if (f == "cuLaunchKernelEx") return Shape::kKernelEx;
  if (f == "cuLaunchHostFunc" || f == "cuLaunchHostFunc_v2") return Shape::kNothing;
  if (has_prefix(f, {"cuLaunch", "cuGraphLaunch", "cuStreamBatchMemOp", "cuMemPrefetch", "cuMemDiscard",
                     "cuMemBatchDecompress", "cuFabricCpy"}))
    return Shape::kUnknown;
  if (f == "cuMemcpy" || f == "cuMemcpyAsync") return Shape::kUnified;
  if (f == "cuMemcpyPeer" || f == "cuMemcpyPeerAsync") return Shape::kPeer;
  if (f == "cuMemcpyHtoD_v2" || f == "cuMemcpyHtoDAsync_v2") return Shape::kHostToDevice;
  if (f == "cuMemcpyDtoH_v2" || f == "cuMemcpyDtoHAsync_v2") return Shape::kDeviceToHost;
  if (f == "cuMemcpyDtoD_v2" || f == "cuMemcpyDtoDAsync_v2") return Shape::kDeviceToDevice;
  if (f == "cuMemcpy2D_v2" || f == "cuMemcpy2DUnaligned_v2" || f == "cuMemcpy2DAsync_v2") return Shape::kCopy2D;
  if (f == "cuMemcpy3D_v2" || f == "cuMemcpy3DAsync_v2") return Shape::kCopy3D;
  if (f.starts_with("cuMemcpy")) return Shape::kUnknown;
  if (f.starts_with("cuMemsetD2D"))
    return f.ends_with("_v2") || f.ends_with("Async") ? Shape::kFill2D : Shape::kUnknown;
  if (f.starts_with("cuMemset")) return f.ends_with("_v2") || f.ends_with("Async") ? Shape::kFill : Shape::kUnknown;
  if (f.starts_with("cuStreamWriteValue")) return Shape::kWriteValue;
  return Shape::kNothing;
}

/// Bytes that one element of a fill, or one value written, has.
constexpr unsigned element_size(std::string_view f) {
  if (f.find("Value64") != std::string_view::npos) return 8;
  if (f.find("D16") != std::string_view::npos) return 2;
  return f.find("D8") != std::string_view::npos ? 1 : 4;
}

}  // namespace ckpt::interposer
