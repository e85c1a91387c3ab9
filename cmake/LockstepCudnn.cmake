# Whether attention can be by cuDNN without ATen in between: LOCKSTEP_CALLS_CUDNN. cuDNN itself comes with libtorch and is
# found at run time; this is about its headers and those of its front end, of which some releases lack what is called
# and others want further headers (nvrtc.h). So the source that calls it is parsed once with what there is.
find_path(LOCKSTEP_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
          HINTS "${LOCKSTEP_JSON_INCLUDE}"
          "${LOCKSTEP_TORCH_FOLDER}/../include"             # where pip puts what a wheel has in include/
          "${LOCKSTEP_TORCH_FOLDER}/../../../../include")
find_path(LOCKSTEP_CUDNN_INCLUDE cudnn_version.h
          HINTS "${LOCKSTEP_TORCH_FOLDER}/../nvidia/cudnn/include" "${LOCKSTEP_CUDA_INCLUDE}")

set(LOCKSTEP_CUDNN_OPTIONS -isystem "${LOCKSTEP_CUDNN_FRONTEND_INCLUDE}" -isystem "${LOCKSTEP_CUDNN_INCLUDE}"
                           -isystem "${LOCKSTEP_CUDA_INCLUDE}")
set(_asked "${CMAKE_CXX_COMPILER} ${LOCKSTEP_CUDNN_OPTIONS}")
if(NOT LOCKSTEP_CUDNN_FRONTEND_INCLUDE OR NOT LOCKSTEP_CUDNN_INCLUDE)
  set(_calls OFF)
  set(_missing "no cudnn_frontend.h (pip install nvidia-cudnn-frontend)")
  if(LOCKSTEP_CUDNN_FRONTEND_INCLUDE)
    set(_missing "no cudnn_version.h")
  endif()
elseif(LOCKSTEP_CALLS_CUDNN AND _asked STREQUAL LOCKSTEP_CUDNN_ASKED)
  set(_calls ON)
else()
  execute_process(
    COMMAND "${CMAKE_CXX_COMPILER}" -std=c++20 -fsyntax-only ${LOCKSTEP_CUDNN_OPTIONS}
            -I "${CMAKE_CURRENT_LIST_DIR}/../src" "${CMAKE_CURRENT_LIST_DIR}/../src/kernels/attention.cpp"
    RESULT_VARIABLE _status ERROR_VARIABLE _said OUTPUT_QUIET)
  if(_status EQUAL 0)
    set(_calls ON)
  else()
    set(_calls OFF)
    set(_missing "${LOCKSTEP_CUDNN_FRONTEND_INCLUDE} does not fit")
    if(_said MATCHES "error: ([^\n]*)")
      string(APPEND _missing ": ${CMAKE_MATCH_1}")
    endif()
  endif()
  set(LOCKSTEP_CUDNN_ASKED "${_asked}" CACHE INTERNAL "what LOCKSTEP_CALLS_CUDNN was found out with")
endif()
set(LOCKSTEP_CALLS_CUDNN ${_calls} CACHE INTERNAL "attention without ATen in between")
if(NOT LOCKSTEP_CALLS_CUDNN)
  message(STATUS "ATen calls cuDNN's attention: ${_missing}")
endif()
