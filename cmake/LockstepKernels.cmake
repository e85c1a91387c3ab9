# Whether the CUDA kernels are compiled: wherever an nvcc that can is found (CUDACXX, CUDA_HOME, the PATH,
# /usr/local/cuda). A GPU is needed only to run them.
set(_oldest_nvcc 13)
find_program(LOCKSTEP_NVCC NAMES "$ENV{CUDACXX}" nvcc
             HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
set(_kernels OFF)
if(LOCKSTEP_NVCC AND PROJECT_IS_TOP_LEVEL AND NOT DEFINED LOCKSTEP_KERNELS)
  execute_process(COMMAND "${LOCKSTEP_NVCC}" --version OUTPUT_VARIABLE _said ERROR_VARIABLE _said)
  if(_said MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL _oldest_nvcc)
    set(_kernels ON)
  else()
    message(STATUS "No CUDA kernels: ${LOCKSTEP_NVCC} is not of release ${_oldest_nvcc} or newer; "
                   "CUDACXX may name another")
  endif()
endif()
if(NOT _kernels AND NOT DEFINED LOCKSTEP_KERNELS)
  unset(LOCKSTEP_NVCC CACHE)  # another may be there next time
  set(LOCKSTEP_KERNELS OFF)
  return()
endif()
option(LOCKSTEP_KERNELS "Compile the CUDA kernels (needs nvcc ${_oldest_nvcc})" ${_kernels})
if(LOCKSTEP_KERNELS)
  set(CMAKE_CUDA_COMPILER "${LOCKSTEP_NVCC}" CACHE FILEPATH "")
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
  endif()
  enable_language(CUDA)
endif()
