# How every target of this project is compiled.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/bin")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A second clone, wherever it lies, finds what the first one compiled: paths count from the
  # source folder. Without the sloppiness ccache refuses whatever uses a precompiled header, and
  # make, which sets the locale, and ninja by hand share nothing.
  set(CMAKE_C_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      "CCACHE_BASEDIR=${CMAKE_CURRENT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime,locale"
      "${LOCKSTEP_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_C_COMPILER_LAUNCHER}")
endif()

find_package(Threads REQUIRED)

# Header-only dependencies may come from a bundle (tools/bundle) where nothing can be installed.
if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/bundle/include")
  list(PREPEND CMAKE_PREFIX_PATH "${CMAKE_CURRENT_SOURCE_DIR}/bundle")
endif()
find_path(LOCKSTEP_JSON_INCLUDE nlohmann/json.hpp
          HINTS "${CMAKE_CURRENT_SOURCE_DIR}/bundle/include" REQUIRED)
find_path(LOCKSTEP_XXHASH_INCLUDE xxhash.h
          HINTS "${CMAKE_CURRENT_SOURCE_DIR}/bundle/include" REQUIRED)

add_library(lockstep_options INTERFACE)
target_compile_features(lockstep_options INTERFACE cxx_std_20)
target_compile_options(lockstep_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>  # lets ccache see a precompiled header
  $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
endif()

# The launcher runs where this compiler's libstdc++ is not.
set(_static_runtime OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT LOCKSTEP_SANITIZE)
  set(_static_runtime ON)
endif()
option(LOCKSTEP_STATIC_RUNTIME "Link libstdc++ into the launcher" ${_static_runtime})

# Names of sources in messages begin at the source folder, wherever that lies: the launcher is the same, byte for
# byte (docs/packages.md), and ccache has for all clones what is compiled several sources at a time, which cmake
# includes by their full paths. ccache shows the compiler paths from the build folder, hence the second.
option(LOCKSTEP_REPRODUCIBLE "Keep the paths of this machine out of programs" OFF)
function(lockstep_without_paths target)
  if(LOCKSTEP_REPRODUCIBLE)
    file(RELATIVE_PATH source "${CMAKE_BINARY_DIR}" "${PROJECT_SOURCE_DIR}")
    string(REGEX REPLACE "/$" "" source "${source}")
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>"
      "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${source}/=>")
  endif()
endfunction()

# Small sources that share their headers are compiled about ten at a time: from nothing that takes a
# third of the time; after an edit the batch is compiled again instead of the file. A source's batch
# follows from its name, so that a new file does not move the others and clash far away.
option(LOCKSTEP_BATCHES "Compile several sources at a time" OFF)
set(LOCKSTEP_BATCH_SIZE 12 CACHE STRING "How many sources at most, about")
function(lockstep_compile_in_batches target)
  if(NOT LOCKSTEP_BATCHES)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  set(batches 1)
  while(count GREATER LOCKSTEP_BATCH_SIZE)
    math(EXPR batches "${batches} * 2")
    math(EXPR count "${count} / 2")
  endwhile()
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME)
    string(MD5 digest "${name}")
    string(SUBSTRING "${digest}" 0 6 digest)
    math(EXPR batch "0x${digest} % ${batches}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${target}_${batch})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
