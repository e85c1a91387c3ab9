# Finds libtorch inside an installed PyTorch wheel (or an unpacked libtorch) and makes the target
# lockstep_torch. TorchConfig.cmake is not used: with a CUDA wheel it wants a whole CUDA toolkit at
# configure time even for programs that compile no CUDA.
#
# Looked at in this order: LOCKSTEP_TORCH_DIR, TORCH_INSTALL_PREFIX in the environment,
# CMAKE_PREFIX_PATH, the torch that an installed lockstep was built with, .venv of the source tree,
# python3 on the PATH.
# The same file is installed beside lockstepConfig.cmake, so consumers find torch the same way.
# What went wrong is left in LOCKSTEP_TORCH_PROBLEM: a package must not stop its consumer.
set(LOCKSTEP_TORCH_PROBLEM "")
set(LOCKSTEP_TORCH_DIR "" CACHE PATH "Folder with torch's include/ and lib/ (empty: search)")
option(LOCKSTEP_CUDA "Build the NCCL backend (needs a CUDA wheel, nccl.h and CUDA headers)" OFF)

function(_lockstep_torch_of_python python out)
  execute_process(
    COMMAND "${python}" -c
      "import importlib.util as u; s=u.find_spec('torch'); print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

set(_candidates "${LOCKSTEP_TORCH_DIR}" "$ENV{TORCH_INSTALL_PREFIX}" ${CMAKE_PREFIX_PATH}
    "${LOCKSTEP_TORCH_BUILT_WITH}")
foreach(_python "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
  find_program(_exe NAMES "${_python}" NO_CACHE)
  if(_exe)
    _lockstep_torch_of_python("${_exe}" _dir)
    list(APPEND _candidates "${_dir}")
  endif()
  unset(_exe)
endforeach()

set(_torch "")
foreach(_candidate IN LISTS _candidates)
  # torch.utils.cmake_prefix_path points two levels below the folder wanted here.
  foreach(_dir "${_candidate}" "${_candidate}/../..")
    if(NOT _torch AND _dir AND EXISTS "${_dir}/lib/libtorch_cpu.so"
       AND EXISTS "${_dir}/include/torch/csrc/distributed/c10d/reducer.hpp")
      get_filename_component(_torch "${_dir}" REALPATH)
    endif()
  endforeach()
endforeach()
if(NOT _torch)
  string(CONCAT LOCKSTEP_TORCH_PROBLEM "libtorch was not found. Run `make setup`, or install torch "
    "2.11 or newer for python3, or pass -DLOCKSTEP_TORCH_DIR=<folder of the torch package>.")
  return()
endif()

set(_version_header "${_torch}/include/torch/headeronly/version.h")
if(NOT EXISTS "${_version_header}")
  set(_version_header "${_torch}/include/torch/csrc/api/include/torch/version.h")
endif()
file(STRINGS "${_version_header}" _lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]+" "" _numbers "${_lines}")
list(JOIN _numbers "." LOCKSTEP_TORCH_VERSION)
if(LOCKSTEP_TORCH_VERSION VERSION_LESS 2.11)
  string(CONCAT LOCKSTEP_TORCH_PROBLEM "torch ${LOCKSTEP_TORCH_VERSION} in ${_torch} is too old: "
    "lockstep needs 2.11 or newer")
  return()
endif()
if(NOT lockstep_FIND_QUIETLY)
  message(STATUS "torch ${LOCKSTEP_TORCH_VERSION} in ${_torch}")
endif()

if(NOT TARGET lockstep_torch)
  add_library(lockstep_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(lockstep_torch SYSTEM INTERFACE
    "${_torch}/include" "${_torch}/include/torch/csrc/api/include")
  target_compile_definitions(lockstep_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(lockstep_torch INTERFACE "${_torch}/lib/libtorch_cpu.so"
                        "${_torch}/lib/libc10.so")
  target_link_options(lockstep_torch INTERFACE "-Wl,-rpath,${_torch}/lib")
endif()
set(LOCKSTEP_TORCH_FOLDER "${_torch}")

# A CUDA wheel registers its kernels in libtorch_cuda.so, which nothing refers to by name: it must
# be linked as needed or torch::kCUDA does not exist at run time.
if(EXISTS "${_torch}/lib/libtorch_cuda.so")
  target_link_libraries(lockstep_torch INTERFACE -Wl,--no-as-needed "${_torch}/lib/libtorch_cuda.so"
                        "${_torch}/lib/libc10_cuda.so" "${_torch}/lib/libtorch.so")
  get_filename_component(_site "${_torch}/.." REALPATH)
  file(GLOB _nvidia_libs "${_site}/nvidia/*/lib")
  foreach(_lib IN LISTS _nvidia_libs)
    target_link_options(lockstep_torch INTERFACE "-Wl,-rpath,${_lib}" "-Wl,-rpath-link,${_lib}")
  endforeach()
endif()
if(LOCKSTEP_CUDA)
  find_path(LOCKSTEP_CUDA_INCLUDE cuda_runtime_api.h
            HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES include REQUIRED)
  find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS "${_torch}/../nvidia/nccl/include" REQUIRED)
endif()
