# lockstep_pch: torch/torch.h precompiled once, for the programs and tests that include all of it.
# A target uses it with target_precompile_headers(<target> REUSE_FROM lockstep_pch). Its flags must
# be the same, which linking lockstep_options and lockstep::lockstep gives; include folders may
# differ.
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/lockstep_pch.cpp"
     CONTENT "// The home of the precompiled header.\n")
add_library(lockstep_pch OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_BINARY_DIR}/lockstep_pch.cpp")
target_link_libraries(lockstep_pch PRIVATE lockstep_options lockstep::lockstep)
target_precompile_headers(lockstep_pch PRIVATE <torch/torch.h>)
# Its users are programs, which are compiled with -fPIE; an object library would get -fPIC, and the
# compiler would pass over the precompiled header without a word.
set_target_properties(lockstep_pch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(lockstep_pch PRIVATE -fPIE)
