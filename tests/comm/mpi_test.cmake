# Jobs that mpirun starts.
find_program(LOCKSTEP_MPIRUN NAMES mpirun)
set(_missing "")
if(TARGET lockstep_mpi AND LOCKSTEP_MPIRUN)
  add_executable(mpi_job EXCLUDE_FROM_ALL comm/mpi_job.cpp)
  target_link_libraries(mpi_job PRIVATE lockstep_options lockstep::lockstep)
  lockstep_use_torch_pch(mpi_job)
  add_dependencies(mpi_job lockstep_mpi)
  add_dependencies(lockstep_tests mpi_job)
else()
  set(_missing "no MPI with mpirun (apt-get install libopenmpi-dev openmpi-bin)")
endif()
set(_mpi "${LOCKSTEP_TEST_PYTHON}" "${CMAKE_CURRENT_SOURCE_DIR}/comm/mpi_test.py"
    "$<TARGET_FILE:lockstep_program>" "$<TARGET_FILE:mpi_job>")
set(_fast Mpi.test_every_collective_equals_a_reference Mpi.test_without_the_plugin_it_says_how_to_get_it)
lockstep_script_test(comm.mpi LABELS multiprocess waits TIMEOUT 300 MISSING "${_missing}"
                     COMMAND ${_mpi} ${_fast})
lockstep_script_test(comm.mpi_long LABELS multiprocess waits slow TIMEOUT 300 MISSING "${_missing}"
                     COMMAND ${_mpi} --but ${_fast})
