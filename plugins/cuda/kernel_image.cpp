#include "plugins/cuda/kernel_image.h"

#include <cstdlib>

#include "lib/base/io.h"

// Of the build: kernels.cmake.
extern "C" const unsigned char ckpt_kernel_image[];
extern "C" const size_t ckpt_kernel_image_size;

namespace ckpt::cuda {

constexpr uint64_t kMostImageBytes = 64 << 20;

ByteSpan built_in_kernels() { return {reinterpret_cast<const std::byte*>(ckpt_kernel_image), ckpt_kernel_image_size}; }

Result<std::string> read_kernels() {
  const char* named = std::getenv("CKPT_CUDA_KERNELS");
  std::string image(as_text(built_in_kernels()));
  if (named != nullptr && *named != '\0') {
    CKPT_TRY_ASSIGN(image, io::read_file(named, kMostImageBytes));
  }
  if (!image.empty()) image.push_back('\0');
  return image;
}

}  // namespace ckpt::cuda
