# Manual pages and completions, made by the programs themselves after they are built: target lockstep_manuals,
# part of `all`. Files go to <build>/share, laid out as they are installed.
#
# lockstep_manual(<page> <summary> COMPONENT <component> COMMAND <target> [<argument>...])
#   <page>(1) from what the command prints with --help.
# lockstep_installed_program(<target> <summary>)
#   for a program of apps/ on libtorch: it is installed (component programs) and has a manual page.
find_program(LOCKSTEP_PYTHON3 NAMES python3 python)
if(NOT LOCKSTEP_PYTHON3)
  message(STATUS "No python3: built without manual pages")
endif()
set(LOCKSTEP_SHARE "${PROJECT_BINARY_DIR}/share")
file(MAKE_DIRECTORY "${LOCKSTEP_SHARE}/man/man1")
add_custom_target(lockstep_manuals ALL)
set_property(GLOBAL PROPERTY LOCKSTEP_MANUAL_PAGES "")

function(lockstep_manual page summary)
  cmake_parse_arguments(arg "AS_IS" "COMPONENT" "COMMAND" ${ARGN})
  if(NOT LOCKSTEP_PYTHON3)
    return()
  endif()
  list(POP_FRONT arg_COMMAND target)
  set(file "${LOCKSTEP_SHARE}/man/man1/${page}.1.gz")
  set(how "")
  if(arg_AS_IS)
    set(how --as-is)
  else()
    list(APPEND arg_COMMAND --help)
  endif()
  set(tool "${PROJECT_SOURCE_DIR}/tools/help_to_man")
  add_custom_command(OUTPUT "${file}" DEPENDS ${target} "${tool}" VERBATIM
    COMMAND "${LOCKSTEP_PYTHON3}" "${tool}" --name ${page} --summary "${summary}"
            --version "${PROJECT_VERSION}" --output "${file}" ${how}
            -- "$<TARGET_FILE:${target}>" ${arg_COMMAND})
  set_property(TARGET lockstep_manuals APPEND PROPERTY SOURCES "${file}")
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_MANUAL_PAGES "${arg_COMPONENT}=${file}")
endfunction()

# A page that says what another one does, too.
function(lockstep_manual_alias page of)
  set(file "${LOCKSTEP_SHARE}/man/man1/${page}.1.gz")
  if(LOCKSTEP_PYTHON3)
    add_custom_command(OUTPUT "${file}" VERBATIM
      COMMAND "${LOCKSTEP_PYTHON3}" -c
      "import gzip, sys; open(sys.argv[1], 'wb').write(gzip.compress(sys.argv[2].encode() + b'\\n', 9, mtime=0))"
      "${file}" ".so man1/${of}.1")
    set_property(TARGET lockstep_manuals APPEND PROPERTY SOURCES "${file}")
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_MANUAL_PAGES "launcher=${file}")
  endif()
endfunction()

function(lockstep_installed_program target summary)
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_INSTALLED_PROGRAMS ${target})
  lockstep_manual(${target} "${summary}" COMPONENT programs COMMAND ${target})
endfunction()

# What completes the command line, under the names that the shells look for.
function(lockstep_completions target)
  foreach(pair bash=bash-completion/completions/lockstep zsh=zsh/vendor-completions/_lockstep
          fish=fish/vendor_completions.d/lockstep.fish)
    string(REGEX MATCH "^([a-z]+)=(.+)$" _ "${pair}")
    set(shell "${CMAKE_MATCH_1}")
    set(file "${LOCKSTEP_SHARE}/${CMAKE_MATCH_2}")
    get_filename_component(folder "${file}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(OUTPUT "${file}" DEPENDS ${target} VERBATIM
                       COMMAND "$<TARGET_FILE:${target}>" completion ${shell} > "${file}")
    set_property(TARGET lockstep_manuals APPEND PROPERTY SOURCES "${file}")
  endforeach()
endfunction()
