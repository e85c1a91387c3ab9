# Installs the libraries, their public headers and a CMake package. tests/install uses the result.
#
# There are two export sets and two install components, so that lockstep::core can be installed,
# found and used where there is no libtorch.
include(CMakePackageConfigHelpers)

set(LOCKSTEP_INSTALL_CMAKEDIR "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")

function(_lockstep_install target component export)
  install(TARGETS ${target} EXPORT ${export} COMPONENT ${component}
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT ${export} NAMESPACE lockstep:: COMPONENT ${component}
          DESTINATION "${LOCKSTEP_INSTALL_CMAKEDIR}")
endfunction()

_lockstep_install(lockstep_core core lockstepCoreTargets)
if(LOCKSTEP_PROGRAMS)
  install(TARGETS lockstep_program COMPONENT core RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  if(TARGET lockstep_board_program)
    install(TARGETS lockstep_board_program COMPONENT core
            RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endif()
if(TARGET lockstep_arrow)
  install(TARGETS lockstep_arrow COMPONENT lockstep LIBRARY DESTINATION lib/lockstep)
endif()
if(TARGET lockstep_mpi)
  install(TARGETS lockstep_mpi COMPONENT lockstep LIBRARY DESTINATION lib/lockstep)
endif()
if(LOCKSTEP_TORCH)
  _lockstep_install(lockstep lockstep lockstepTargets)
  _lockstep_install(lockstep_c lockstep lockstepCTargets)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/LockstepTorch.cmake" COMPONENT lockstep
          DESTINATION "${LOCKSTEP_INSTALL_CMAKEDIR}")
endif()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/lockstepConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
  INSTALL_DESTINATION "${LOCKSTEP_INSTALL_CMAKEDIR}"
  NO_SET_AND_CHECK_MACRO)
# Until 1.0 a minor version may change the API.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
              "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
        COMPONENT core DESTINATION "${LOCKSTEP_INSTALL_CMAKEDIR}")
