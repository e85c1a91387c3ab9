# kernels: CUDA. Compiled wherever its compiler is, so that they are known to compile; part of the library
# where that is built for a GPU.
add_library(lockstep_kernels OBJECT
  kernels/adamw.cu
  kernels/cast.cu
  kernels/column_sum.cu
  kernels/cross_entropy.cu
  kernels/device_code.cu
  kernels/embedding.cu
  kernels/head_loss.cu
  kernels/launch_check.cu
  kernels/layer_norm.cu
  kernels/tensor_maps.cu
  kernels/tile_attention.cu
  kernels/tile_products.cu)
target_include_directories(lockstep_kernels PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_compile_options(lockstep_kernels PRIVATE -std=c++20)  # CMake 3.25 does not know that nvcc can
