# Whether the CUDA kernels are compiled: wherever nvcc is found (CUDACXX, CUDA_HOME, the PATH, /usr/local/cuda).
# A GPU is needed only to run them.
find_program(LOCKSTEP_NVCC NAMES "$ENV{CUDACXX}" nvcc
             HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
set(_kernels OFF)
if(LOCKSTEP_NVCC AND PROJECT_IS_TOP_LEVEL)
  set(_kernels ON)
endif()
option(LOCKSTEP_KERNELS "Compile the CUDA kernels (needs nvcc 13)" ${_kernels})
if(LOCKSTEP_KERNELS)
  set(CMAKE_CUDA_COMPILER "${LOCKSTEP_NVCC}" CACHE FILEPATH "")
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
  endif()
  enable_language(CUDA)
endif()
