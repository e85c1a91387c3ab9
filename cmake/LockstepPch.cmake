# lockstep_pch: torch/torch.h precompiled once, for the programs and tests that include all of it.
# A target uses it with lockstep_use_torch_pch(<target>). Its flags must be the same, which linking
# lockstep_options and lockstep::lockstep gives; include folders may differ.
#
# All of them are compiled with -O1: what is hot is in libtorch and in the library, and with -O3 a
# source with torch/torch.h in it takes 30 s instead of 16.
set(LOCKSTEP_PCH_OPTIMIZATION "$<$<CONFIG:Release>:-O1>")
function(lockstep_use_torch_pch target)
  target_compile_options(${target} PRIVATE ${LOCKSTEP_PCH_OPTIMIZATION})
  lockstep_without_paths(${target})
  target_precompile_headers(${target} REUSE_FROM lockstep_pch)
  # g++ keeps templates that are still to be instantiated in the precompiled header, and every source
  # that uses it instantiates them all: 9 s, however small it is. Several sources in one pay that once.
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
endfunction()
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/lockstep_pch.cpp"
     CONTENT "// The home of the precompiled header.\n")
add_library(lockstep_pch OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_BINARY_DIR}/lockstep_pch.cpp")
target_link_libraries(lockstep_pch PRIVATE lockstep_options lockstep::lockstep)
target_precompile_headers(lockstep_pch PRIVATE <torch/torch.h>)
# Its users are programs, which are compiled with -fPIE; an object library would get -fPIC, and the
# compiler would pass over the precompiled header without a word.
set_target_properties(lockstep_pch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(lockstep_pch PRIVATE -fPIE ${LOCKSTEP_PCH_OPTIMIZATION})
lockstep_without_paths(lockstep_pch)
