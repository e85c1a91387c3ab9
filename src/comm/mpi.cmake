# Part of comm: backend mpi.
lockstep_directing_sources(teams
  comm/mpi.cpp
  comm/mpi_backend.cpp
  comm/mpi_memory.cpp)
lockstep_computing_sources(comm_and_aten
  comm/mpi_thread.cpp)

# What speaks MPI, loaded when backend mpi is asked for (comm/mpi_plugin.h). Only the C API is used.
option(LOCKSTEP_MPI "Build the plugin for backend mpi, where an MPI is found" ON)
if(LOCKSTEP_MPI)
  find_package(MPI QUIET COMPONENTS C)
endif()
if(LOCKSTEP_MPI AND MPI_C_FOUND)
  add_library(lockstep_mpi MODULE comm/mpi_plugin.cpp)
  target_include_directories(lockstep_mpi PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(lockstep_mpi PRIVATE lockstep_options MPI::MPI_C)
  set_target_properties(lockstep_mpi PROPERTIES CXX_VISIBILITY_PRESET hidden
                        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  message(STATUS "MPI ${MPI_C_VERSION}: backend mpi can be used")
else()
  message(STATUS "No MPI: built without backend mpi (apt-get install libopenmpi-dev)")
endif()
