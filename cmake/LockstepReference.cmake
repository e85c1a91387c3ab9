# Target lockstep_reference: the public headers as pages, in <build>/reference/html (`make docs`).
find_program(LOCKSTEP_DOXYGEN doxygen)
# The source archive of the launcher comes without docs.
if(LOCKSTEP_DOXYGEN AND LOCKSTEP_PYTHON3 AND EXISTS "${PROJECT_SOURCE_DIR}/docs/reference/Doxyfile.in")
  set(LOCKSTEP_REFERENCE "${PROJECT_BINARY_DIR}/reference")
  configure_file("${PROJECT_SOURCE_DIR}/docs/reference/Doxyfile.in" "${LOCKSTEP_REFERENCE}/Doxyfile" @ONLY)
  add_custom_target(lockstep_reference VERBATIM
    COMMAND "${LOCKSTEP_PYTHON3}" "${PROJECT_SOURCE_DIR}/docs/reference/build.py"
            "${LOCKSTEP_DOXYGEN}" "${LOCKSTEP_REFERENCE}/Doxyfile")
endif()
