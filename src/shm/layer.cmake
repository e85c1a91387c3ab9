# shm: what ranks of one machine do through memory that they share.
lockstep_layer(shm LIBRARIES lockstep::core SOURCES
  shm/element.cpp
  shm/mail.cpp
  shm/mail_move.cpp
  shm/reduce.cpp
  shm/reduce_avx2.cpp
  shm/reduce_avx512.cpp
  shm/reduce_portable.cpp
  shm/serial_queue.cpp
  shm/shared_block.cpp
  shm/shared_segment.cpp
  shm/team.cpp
  shm/team_in_place.cpp
  shm/team_move.cpp
  shm/team_reduce.cpp)
# One set of loops, compiled for several processors: each for itself, whatever the others may use.
set(_reduce_loops -O3 -ffp-contract=off)
set(_reduce_avx2 ${_reduce_loops})
set(_reduce_avx512 ${_reduce_loops})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND _reduce_avx2 -mavx2)
  list(APPEND _reduce_avx512 -mavx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl
       -mprefer-vector-width=512)
endif()
set_source_files_properties(shm/reduce_portable.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "${_reduce_loops}")
set_source_files_properties(shm/reduce_avx2.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "${_reduce_avx2}")
set_source_files_properties(shm/reduce_avx512.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "${_reduce_avx512}")
