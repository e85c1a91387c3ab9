# GPT-2 on a GPU by kernels of our own, cublasLt and cuDNN, where all of CUDA's parts are there.
if(NOT LOCKSTEP_CUDA OR NOT LOCKSTEP_KERNELS)
  lockstep_directing_sources(models models/fused_absent.cpp optim/gpu_adamw_absent.cpp)
  return()
endif()

find_package(CUDAToolkit REQUIRED)
include(LockstepCudnn)
set(_fused kernels/gemm.cpp models/fused_attention.cpp models/fused_block.cpp models/fused_gelu.cpp
    models/fused_gpt2.cpp models/fused_head.cpp models/fused_ops.cpp models/fused_weights.cpp optim/gpu_adamw.cpp)
set_source_files_properties(${_fused} PROPERTIES INCLUDE_DIRECTORIES "${LOCKSTEP_CUDA_INCLUDE}")
if(LOCKSTEP_CALLS_CUDNN)
  list(APPEND _fused kernels/attention.cpp)
  set_source_files_properties(kernels/attention.cpp PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "${LOCKSTEP_CUDNN_OPTIONS}")
else()
  list(APPEND _fused kernels/attention_absent.cpp)
endif()
target_sources(lockstep PRIVATE ${_fused} $<TARGET_OBJECTS:lockstep_kernels>)
target_link_libraries(lockstep PUBLIC $<BUILD_INTERFACE:CUDA::cudart>
                      $<BUILD_INTERFACE:CUDA::cublasLt> ${CMAKE_DL_LIBS})
