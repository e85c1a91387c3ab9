# Jobs in each stage under a launcher: memory, traffic, limits; and what a snapshot's model says, for
# programs/train_llm_shard_test.py.
foreach(job shard_job logits_job)
  add_executable(${job} EXCLUDE_FROM_ALL "${CMAKE_CURRENT_SOURCE_DIR}/shard/${job}.cpp")
  add_dependencies(lockstep_tests ${job})
  target_include_directories(${job} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${job} PRIVATE lockstep::lockstep lockstep_options)
  lockstep_use_torch_pch(${job})
endforeach()
lockstep_script_test(shard.jobs LABELS multiprocess slow TIMEOUT 600
                     COMMAND "${LOCKSTEP_TEST_PYTHON}"
                     "${CMAKE_CURRENT_SOURCE_DIR}/shard/sharded_jobs_test.py"
                     $<TARGET_FILE:lockstep_program> $<TARGET_FILE:shard_job>)
