# The wheel of a launcher that is built already: LOCKSTEP_PREBUILT is a folder with bin and share. tools/package
# uses it, so that a build folder gives packages without compiling anything again.
if(NOT EXISTS "${LOCKSTEP_PREBUILT}/bin/lockstep")
  message(FATAL_ERROR "LOCKSTEP_PREBUILT is ${LOCKSTEP_PREBUILT}, which has no bin/lockstep")
endif()
file(GLOB _programs "${LOCKSTEP_PREBUILT}/bin/*")
install(PROGRAMS ${_programs} DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT launcher)
if(EXISTS "${LOCKSTEP_PREBUILT}/share")
  install(DIRECTORY "${LOCKSTEP_PREBUILT}/share" DESTINATION "${SKBUILD_DATA_DIR}" COMPONENT launcher)
endif()
add_custom_target(lockstep_program)
add_custom_target(lockstep_manuals)
