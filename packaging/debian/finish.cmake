# CPack runs this between installing into its folders and packing them: what a Debian package has and
# `cmake --install` does not.
#
# - copyright and changelog, compressed without a time in them
# - no path of the machine that built it: where torch, pyarrow and MPI are is the user's affair
# - libraries are not executable, nothing is writable for a group
# - one time for all files, where SOURCE_DATE_EPOCH gives it: the package is the same, byte for byte
foreach(_pair launcher=lockstep library=liblockstep-dev)
  string(REGEX MATCH "^([a-z]+)=(.+)$" _ "${_pair}")
  set(_root "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${CMAKE_MATCH_1}")
  set(_docs "${_root}/usr/share/doc/${CMAKE_MATCH_2}")
  if(NOT EXISTS "${_root}")
    continue()
  endif()
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/copyright" DESTINATION "${_docs}")
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/../../CHANGELOG.md" DESTINATION "${_docs}")
  file(RENAME "${_docs}/CHANGELOG.md" "${_docs}/changelog")
  execute_process(COMMAND gzip -9nf "${_docs}/changelog" COMMAND_ERROR_IS_FATAL ANY)

  file(GLOB _libraries "${_root}/usr/lib/*.so*" "${_root}/usr/lib/lockstep/*.so")
  foreach(_library IN LISTS _libraries)
    if(NOT IS_SYMLINK "${_library}")
      file(RPATH_REMOVE FILE "${_library}")
    endif()
  endforeach()
  set(_config "${_root}/usr/lib/cmake/lockstep/lockstepConfig.cmake")
  if(EXISTS "${_config}")
    file(READ "${_config}" _text)
    string(REGEX REPLACE "(LOCKSTEP_TORCH_BUILT_WITH) \"[^\"]*\"" "\\1 \"\"" _text "${_text}")
    file(WRITE "${_config}" "${_text}")
  endif()
  execute_process(COMMAND find "${_root}" -type d -exec chmod 755 {} + COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND find "${_root}" -type f -exec chmod 644 {} + COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND find "${_root}" -type f -path */usr/bin/* -exec chmod 755 {} +
                  COMMAND_ERROR_IS_FATAL ANY)
  if(DEFINED ENV{SOURCE_DATE_EPOCH})
    execute_process(COMMAND find "${_root}" -exec touch -h -d "@$ENV{SOURCE_DATE_EPOCH}" {} +
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
