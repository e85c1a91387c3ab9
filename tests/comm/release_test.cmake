# Ranks that are killed in each collective; bench/release uses the program, too.
add_executable(release_job EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/comm/release_job.cpp")
add_dependencies(lockstep_tests release_job)
target_include_directories(release_job PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(release_job PRIVATE lockstep::lockstep lockstep_options)
lockstep_use_torch_pch(release_job)
lockstep_script_test(comm.release LABELS multiprocess chaos slow TIMEOUT 900
                     COMMAND "${LOCKSTEP_TEST_PYTHON}"
                     "${CMAKE_CURRENT_SOURCE_DIR}/comm/release_test.py" $<TARGET_FILE:release_job>)
