// What a call's arguments say about the memory that it touches.
#include <algorithm>
#include <cstring>

#include "plugins/interposer/guarded_calls.h"
#include "plugins/interposer/kernels.h"
#include "plugins/interposer/watch.h"

namespace ckpt::interposer {

namespace {

constexpr size_t kMaxParameters = 4096, kMaxParameterBytes = 32768;

CUdeviceptr pointer(Word word) { return static_cast<CUdeviceptr>(word); }

void add_both(Access& access, Bytes bytes) {
  access.reads.push_back(bytes);
  access.writes.push_back(bytes);
}

/// Whatever looks like an address in owned memory: all that it may stand for, read and written. Every fourth byte is
/// tried: structures may be packed.
void scan(Access& access, const unsigned char* data, size_t size) {
  for (size_t at = 0; at + sizeof(CUdeviceptr) <= size; at += 4) {
    CUdeviceptr candidate;
    std::memcpy(&candidate, data + at, sizeof candidate);
    const Reach reach = reach_of(candidate);
    if (reach.size == 0) continue;
    const auto same = [&](const Bytes& b) { return b.start == reach.start; };
    if (std::none_of(access.writes.begin(), access.writes.end(), same)) add_both(access, {reach.start, reach.size});
  }
}

/// Of a launch: how to run it again.
struct LaunchRecord {
  static constexpr uint32_t kTag = 0x4c4e4843;
  uint32_t tag = kTag, cooperative = 0;
  CUfunction function = nullptr;
  unsigned grid[3] = {}, block[3] = {}, shared = 0;
  uint32_t parameter_bytes = 0;
  CUstream stream = nullptr;
  CUcontext context = nullptr;
};

CUresult parameter_info(CUfunction function, size_t i, size_t* offset, size_t* size) {
  return is_kernel(function) ? drv::cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), i, offset, size)
                             : drv::cuFuncGetParamInfo(function, i, offset, size);
}

/// The bytes of all parameters as the kernel sees them. False: the driver does not tell their sizes.
bool gather(CUfunction function, void** parameters, void** extra, std::string* out) {
  if (extra != nullptr) {
    const void* buffer = nullptr;
    const size_t* size = nullptr;
    for (void** at = extra; *at != nullptr; at += 2) {
      if (*at == kLaunchParamBufferPointer) buffer = at[1];
      if (*at == kLaunchParamBufferSize) size = static_cast<const size_t*>(at[1]);
    }
    if (buffer == nullptr || size == nullptr || *size > kMaxParameterBytes) return false;
    out->assign(static_cast<const char*>(buffer), *size);
    return true;
  }
  for (size_t i = 0; i < kMaxParameters; ++i) {
    size_t offset = 0, size = 0;
    const CUresult result = parameter_info(function, i, &offset, &size);
    if (result == CUDA_ERROR_INVALID_VALUE) return i == 0 || parameters != nullptr;  // past the last one
    if (result != CUDA_SUCCESS || parameters == nullptr || offset > kMaxParameterBytes || size > kMaxParameterBytes)
      return false;
    if (out->size() < offset + size) out->resize(offset + size);
    std::memcpy(out->data() + offset, parameters[i], size);
  }
  return false;
}

void kernel(Access& access, LaunchRecord launch, void** parameters, void** extra, bool replayable) {
  std::string bytes;
  access.stream = launch.stream;
  if (!gather(launch.function, parameters, extra, &bytes)) {
    access.unknown = true;
    return;
  }
  scan(access, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  access.replayable = replayable;
  launch.parameter_bytes = static_cast<uint32_t>(bytes.size());
  drv::cuCtxGetCurrent(&launch.context);
  access.record.assign(reinterpret_cast<const char*>(&launch), sizeof launch);
  access.record += bytes;
}

/// Copies and fills by one call with words alone.
struct WordsRecord {
  static constexpr uint32_t kTag = 0x57524453;
  uint32_t tag = kTag, index = 0;
  CUcontext context = nullptr;
  Word words[8] = {};
};

void keep_words(Access& access, size_t index, const Word* words) {
  WordsRecord record;
  record.index = static_cast<uint32_t>(index);
  drv::cuCtxGetCurrent(&record.context);
  const size_t count = std::min<size_t>(kNames[index].words, 8);
  std::memcpy(record.words, words, count * sizeof(Word));
  access.record.assign(reinterpret_cast<const char*>(&record), sizeof record);
  access.replayable = true;
}

/// The device side of a structure copy: from its first row to its last.
template <class Copy>
Bytes reach(CUdeviceptr base, size_t x, size_t y, size_t z, size_t pitch, size_t height, const Copy& copy,
            size_t depth) {
  const size_t rows = (z + depth - 1) * height + y + copy.Height;
  if (depth == 0 || copy.Height == 0 || rows == 0) return {base, 0};
  return {base, (rows - 1) * std::max(pitch, copy.WidthInBytes) + x + copy.WidthInBytes};
}
bool on_device(CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED; }

void copy_2d(Access& access, const CUDA_MEMCPY2D& copy) {
  // UNIFIED takes its address from the device field, whatever memory that is.
  if (on_device(copy.srcMemoryType))
    access.reads.push_back(reach(copy.srcDevice, copy.srcXInBytes, copy.srcY, 0, copy.srcPitch, 0, copy, 1));
  if (on_device(copy.dstMemoryType))
    access.writes.push_back(reach(copy.dstDevice, copy.dstXInBytes, copy.dstY, 0, copy.dstPitch, 0, copy, 1));
}

void copy_3d(Access& access, const CUDA_MEMCPY3D& copy) {
  if (on_device(copy.srcMemoryType)) {
    access.reads.push_back(
        reach(copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight, copy, copy.Depth));
  }
  if (on_device(copy.dstMemoryType)) {
    access.writes.push_back(
        reach(copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight, copy, copy.Depth));
  }
}

void fill(Access& access, size_t index, const Word* words, bool rows) {
  const unsigned element = element_size(kNames[index].function);
  if (!rows) {
    access.writes.push_back({pointer(words[0]), words[2] * element});
  } else if (words[4] != 0) {
    access.writes.push_back({pointer(words[0]), (words[4] - 1) * words[1] + words[3] * element});
  }
  keep_words(access, index, words);
}

}  // namespace

Access access_of(size_t index, const Word* words) {
  Access access;
  const std::string_view name = kNames[index].function;
  const bool has_stream = name.find("Async") != std::string_view::npos && kNames[index].words > 0;
  if (has_stream) access.stream = reinterpret_cast<CUstream>(words[kNames[index].words - 1]);
  switch (shape_of(name)) {
    case Shape::kNothing: break;
    case Shape::kKernel: {
      LaunchRecord launch;
      launch.function = reinterpret_cast<CUfunction>(words[0]);
      for (int i = 0; i < 3; ++i) launch.grid[i] = static_cast<unsigned>(words[1 + i]);
      for (int i = 0; i < 3; ++i) launch.block[i] = static_cast<unsigned>(words[4 + i]);
      launch.shared = static_cast<unsigned>(words[7]);
      launch.stream = reinterpret_cast<CUstream>(words[8]);
      launch.cooperative = name.starts_with("cuLaunchCooperativeKernel");
      void** extra = launch.cooperative ? nullptr : reinterpret_cast<void**>(words[10]);
      kernel(access, launch, reinterpret_cast<void**>(words[9]), extra,
             !name.ends_with("_ptsz") || launch.stream != nullptr);
      break;
    }
    case Shape::kKernelEx: {
      const auto& config = *reinterpret_cast<const CUlaunchConfig*>(words[0]);
      LaunchRecord launch;
      launch.function = reinterpret_cast<CUfunction>(words[1]);
      const unsigned sizes[] = {config.gridDimX,  config.gridDimY,  config.gridDimZ,
                                config.blockDimX, config.blockDimY, config.blockDimZ};
      std::memcpy(launch.grid, sizes, sizeof launch.grid);
      std::memcpy(launch.block, sizes + 3, sizeof launch.block);
      launch.shared = config.sharedMemBytes;
      launch.stream = config.hStream;
      const bool plain = config.numAttrs == 0 && (!name.ends_with("_ptsz") || launch.stream != nullptr);
      kernel(access, launch, reinterpret_cast<void**>(words[2]), reinterpret_cast<void**>(words[3]), plain);
      break;
    }
    case Shape::kDeviceToDevice:
      access.reads.push_back({pointer(words[1]), words[2]});
      access.writes.push_back({pointer(words[0]), words[2]});
      keep_words(access, index, words);
      break;
    case Shape::kHostToDevice: access.writes.push_back({pointer(words[0]), words[2]}); break;
    case Shape::kDeviceToHost: access.reads.push_back({pointer(words[1]), words[2]}); break;
    case Shape::kUnified:
      access.reads.push_back({pointer(words[1]), words[2]});
      access.writes.push_back({pointer(words[0]), words[2]});
      break;
    case Shape::kPeer:
      access.reads.push_back({pointer(words[2]), words[4]});
      access.writes.push_back({pointer(words[0]), words[4]});
      keep_words(access, index, words);
      break;
    case Shape::kFill: fill(access, index, words, false); break;
    case Shape::kFill2D: fill(access, index, words, true); break;
    case Shape::kCopy2D: copy_2d(access, *reinterpret_cast<const CUDA_MEMCPY2D*>(words[0])); break;
    case Shape::kCopy3D: copy_3d(access, *reinterpret_cast<const CUDA_MEMCPY3D*>(words[0])); break;
    case Shape::kWriteValue:
      access.stream = reinterpret_cast<CUstream>(words[0]);
      access.writes.push_back({pointer(words[1]), element_size(name)});
      break;
    case Shape::kUnknown:
      access.unknown = true;
      if (name.starts_with("cuGraphLaunch") || name.starts_with("cuGraphUpload"))
        access.stream = reinterpret_cast<CUstream>(words[1]);
      break;
  }
  if (access.stream == nullptr && name.ends_with("_ptsz")) access.stream = kStreamPerThread;
  return access;
}

std::string name_of(const Access& access, size_t index) {
  constexpr size_t kMost = 256;
  constexpr size_t kKernelGetName = index_of("cuKernelGetName");
  LaunchRecord launch;
  if (access.record.size() >= sizeof launch) std::memcpy(&launch, access.record.data(), sizeof launch);
  const char* name = nullptr;
  if (launch.function != nullptr && launch.tag == LaunchRecord::kTag) {
    const CUresult result = is_kernel(launch.function) ? real<kKernelGetName>(&name, launch.function)
                                                       : drv::cuFuncGetName(&name, launch.function);
    if (result != CUDA_SUCCESS) name = nullptr;
  }
  return std::string(name != nullptr ? name : kNames[index].function).substr(0, kMost);
}

CUresult replay(const std::string& record) {
  uint32_t tag = 0;
  if (record.size() < sizeof tag) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&tag, record.data(), sizeof tag);
  if (tag == LaunchRecord::kTag && record.size() >= sizeof(LaunchRecord)) {
    LaunchRecord launch;
    std::memcpy(&launch, record.data(), sizeof launch);
    if (record.size() - sizeof launch != launch.parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
    std::string parameters = record.substr(sizeof launch);
    size_t size = parameters.size();
    void* extra[] = {kLaunchParamBufferPointer, parameters.data(), kLaunchParamBufferSize, &size, nullptr};
    CUlaunchAttribute cooperative{};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    cooperative.value.cooperative = 1;
    const CUlaunchConfig config = {
        launch.grid[0],  launch.grid[1], launch.grid[2], launch.block[0], launch.block[1],
        launch.block[2], launch.shared,  launch.stream,  &cooperative,    launch.cooperative != 0 ? 1u : 0u};
    InContext scope(launch.context);
    const CUresult result = drv::cuLaunchKernelEx(&config, launch.function, nullptr, extra);
    return result == CUDA_SUCCESS ? drv::cuCtxSynchronize() : result;
  }
  if (tag != WordsRecord::kTag || record.size() != sizeof(WordsRecord)) return CUDA_ERROR_INVALID_VALUE;
  WordsRecord call;
  std::memcpy(&call, record.data(), sizeof call);
  if (call.index >= kNameCount || g_real[call.index] == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Shape shape = shape_of(kNames[call.index].function);
  if (shape != Shape::kDeviceToDevice && shape != Shape::kPeer && shape != Shape::kFill && shape != Shape::kFill2D)
    return CUDA_ERROR_INVALID_VALUE;
  // At most six words: all in registers or one place above; more than a function takes do no harm.
  const Word* w = call.words;
  InContext scope(call.context);
  const CUresult result = reinterpret_cast<CUresult (*)(Word, Word, Word, Word, Word, Word, Word)>(g_real[call.index])(
      w[0], w[1], w[2], w[3], w[4], w[5], w[6]);
  return result == CUDA_SUCCESS ? drv::cuCtxSynchronize() : result;
}

}  // namespace ckpt::interposer
