# What `cmake --install` puts where, by components (docs/packages.md). tests/install uses the results.
#
#   launcher   lockstep, lockstep-board, their manual pages and completions; no libtorch
#   core       lockstep::core with its headers and the CMake package; no libtorch
#   library    on top of core: the headers and libraries of the layers on libtorch
#   programs   the programs of apps/ on libtorch
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
if(LOCKSTEP_TORCH)
  _lockstep_install(lockstep library lockstepTargets)
  _lockstep_install(lockstep_c library lockstepCTargets)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/LockstepTorch.cmake" COMPONENT library
          DESTINATION "${LOCKSTEP_INSTALL_CMAKEDIR}")
endif()
# Plugins: programs look for them in ../lib/lockstep from where they are themselves.
foreach(_plugin lockstep_arrow lockstep_mpi)
  if(TARGET ${_plugin})
    install(TARGETS ${_plugin} COMPONENT library LIBRARY DESTINATION lib/lockstep)
  endif()
endforeach()

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

if(LOCKSTEP_PROGRAMS)
  set(_launcher lockstep_program)
  if(TARGET lockstep_board_program)
    list(APPEND _launcher lockstep_board_program)
  endif()
  install(TARGETS ${_launcher} COMPONENT launcher RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  get_property(_programs GLOBAL PROPERTY LOCKSTEP_INSTALLED_PROGRAMS)
  if(_programs)
    install(TARGETS ${_programs} COMPONENT programs RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
  # Optional: a build of one target alone has not made them.
  get_property(_pages GLOBAL PROPERTY LOCKSTEP_MANUAL_PAGES)
  foreach(_page IN LISTS _pages)
    string(REGEX MATCH "^([a-z]+)=(.+)$" _ "${_page}")
    install(FILES "${CMAKE_MATCH_2}" OPTIONAL COMPONENT ${CMAKE_MATCH_1}
            DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
  endforeach()
  foreach(_shell bash-completion zsh fish)
    install(DIRECTORY "${PROJECT_BINARY_DIR}/share/${_shell}" COMPONENT launcher
            DESTINATION "${CMAKE_INSTALL_DATADIR}")
  endforeach()
  include(LockstepDeb)
endif()
