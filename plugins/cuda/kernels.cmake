# kernels.cu as a fatbin in the binary, where nvcc is there; else an empty one: device memory cannot be hashed then.
find_program(CKPT_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR})
set(kernel_source ${PROJECT_BINARY_DIR}/kernel_image.c)
if(CKPT_NVCC)
  set(fatbin ${PROJECT_BINARY_DIR}/kernels.fatbin)
  set(targets)
  foreach(arch 80 90 100)  # what is built for 80 runs on 86 and 89, too
    list(APPEND targets -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${CKPT_NVCC} -fatbin -std=c++17 -O3 ${targets}
      -gencode arch=compute_80,code=compute_80 -gencode arch=compute_100,code=compute_100
      -I${PROJECT_SOURCE_DIR} -o ${fatbin} ${PROJECT_SOURCE_DIR}/plugins/cuda/kernels.cu
    DEPENDS plugins/cuda/kernels.cu plugins/cuda/kernels.h lib/device/hash.h VERBATIM)
  add_custom_command(OUTPUT ${kernel_source}
    COMMAND ${CMAKE_COMMAND} -DIN=${fatbin} -DOUT=${kernel_source} -P ${PROJECT_SOURCE_DIR}/plugins/cuda/embed.cmake
    DEPENDS ${fatbin} plugins/cuda/embed.cmake)
else()
  file(CONFIGURE OUTPUT ${kernel_source}
    CONTENT "#include <stddef.h>\nconst unsigned char ckpt_kernel_image[1];\nconst size_t ckpt_kernel_image_size;\n")
endif()
add_library(ckpt_cuda_kernels OBJECT ${kernel_source})  # C: the precompiled headers of ckpt_cuda are C++
target_sources(ckpt_cuda PRIVATE $<TARGET_OBJECTS:ckpt_cuda_kernels>)
