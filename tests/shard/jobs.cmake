# Jobs in each stage under a launcher: memory, traffic, limits.
add_executable(shard_job EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/shard/shard_job.cpp")
add_dependencies(lockstep_tests shard_job)
target_include_directories(shard_job PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/src")
target_link_libraries(shard_job PRIVATE lockstep::lockstep lockstep_options)
lockstep_use_torch_pch(shard_job)
lockstep_script_test(shard.jobs LABELS multiprocess slow TIMEOUT 600
                     COMMAND "${LOCKSTEP_TEST_PYTHON}"
                     "${CMAKE_CURRENT_SOURCE_DIR}/shard/sharded_jobs_test.py"
                     $<TARGET_FILE:lockstep_program> $<TARGET_FILE:shard_job>)
