# GPT-2 on a GPU by kernels of our own, cublasLt and cuDNN, where all of CUDA's parts are there.
if(NOT LOCKSTEP_CUDA OR NOT LOCKSTEP_KERNELS)
  target_sources(lockstep PRIVATE models/fused_absent.cpp optim/gpu_adamw_absent.cpp)
  return()
endif()

find_package(CUDAToolkit REQUIRED)
# cuDNN itself comes with libtorch and is found at run time; without these headers ATen calls it.
find_path(LOCKSTEP_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
          HINTS "${LOCKSTEP_JSON_INCLUDE}"
          "${_torch}/../../../../include")
find_path(LOCKSTEP_CUDNN_INCLUDE cudnn_version.h
          HINTS "${_torch}/../nvidia/cudnn/include" "${LOCKSTEP_CUDA_INCLUDE}")

set(_fused kernels/gemm.cpp models/fused_attention.cpp models/fused_block.cpp models/fused_gelu.cpp
    models/fused_gpt2.cpp models/fused_head.cpp models/fused_ops.cpp models/fused_weights.cpp optim/gpu_adamw.cpp)
set_source_files_properties(${_fused} PROPERTIES INCLUDE_DIRECTORIES "${LOCKSTEP_CUDA_INCLUDE}")
# From 1.30 on the front end wants nvrtc's headers, too.
set(_front_end "")
if(LOCKSTEP_CUDNN_FRONTEND_INCLUDE)
  file(STRINGS "${LOCKSTEP_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h" _front_end
       REGEX "define CUDNN_FRONTEND_(MAJOR|MINOR)_VERSION")
  string(REGEX REPLACE "[^0-9;]" "" _front_end "${_front_end}")
  string(REPLACE ";" "." _front_end "${_front_end}")
endif()
set(LOCKSTEP_CALLS_CUDNN OFF CACHE INTERNAL "attention without ATen in between")
if(LOCKSTEP_CUDNN_INCLUDE AND _front_end VERSION_GREATER_EQUAL 1.10 AND _front_end VERSION_LESS 1.30)
  set(LOCKSTEP_CALLS_CUDNN ON CACHE INTERNAL "attention without ATen in between")
  list(APPEND _fused kernels/attention.cpp)
  set_source_files_properties(kernels/attention.cpp PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON
    COMPILE_OPTIONS "-isystem;${LOCKSTEP_CUDNN_FRONTEND_INCLUDE};-isystem;${LOCKSTEP_CUDNN_INCLUDE};-isystem;${LOCKSTEP_CUDA_INCLUDE}")
else()
  message(STATUS "No headers of cuDNN's front end 1.10 to 1.29: ATen calls cuDNN's attention "
                 "(pip install 'nvidia-cudnn-frontend<1.30')")
  list(APPEND _fused kernels/attention_absent.cpp)
endif()
target_sources(lockstep PRIVATE ${_fused} $<TARGET_OBJECTS:lockstep_kernels>)
target_link_libraries(lockstep PUBLIC $<BUILD_INTERFACE:CUDA::cudart>
                      $<BUILD_INTERFACE:CUDA::cublasLt> ${CMAKE_DL_LIBS})
