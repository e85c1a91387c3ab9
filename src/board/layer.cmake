# board: the page over the records of runs. The page itself and what serves it are a program of their own, because
# the HTTP library brings OpenSSL and brotli along, which would slow every `lockstep run` down.
lockstep_layer(board LIBRARIES lockstep_track lockstep::core SOURCES
  board/board_access.cpp
  board/board_api.cpp
  board/curve.cpp
  board/events_view.cpp
  board/growing_file.cpp
  board/metric_scan.cpp
  board/metrics_view.cpp
  board/rank_map.cpp
  board/records_view.cpp
  board/root_folder.cpp
  board/run_folders.cpp
  board/run_glance.cpp
  board/run_index.cpp
  board/run_view.cpp
  board/top_command.cpp
  board/top_screen.cpp)
target_compile_options(lockstep_board PRIVATE "$<$<CONFIG:Release>:-O2>")

find_path(LOCKSTEP_HTTPLIB_INCLUDE httplib.h)
find_library(LOCKSTEP_HTTPLIB_LIBRARY cpp-httplib)
find_path(LOCKSTEP_DYGRAPHS dygraph.min.js PATHS /usr/share/javascript/dygraphs NO_DEFAULT_PATH)
set(LOCKSTEP_BOARD_PAGE OFF)
if(NOT LOCKSTEP_HTTPLIB_INCLUDE OR NOT LOCKSTEP_HTTPLIB_LIBRARY OR NOT LOCKSTEP_DYGRAPHS)
  message(STATUS "No cpp-httplib or no dygraphs: built without `lockstep board` "
                 "(Debian: libcpp-httplib-dev, libjs-dygraphs)")
  return()
endif()
set(LOCKSTEP_BOARD_PAGE ON)

# The page's files become part of the program.
set(_page "${CMAKE_CURRENT_SOURCE_DIR}/board/page")
set(_page_types html "text/html\; charset=utf-8" css "text/css\; charset=utf-8"
    js "text/javascript\; charset=utf-8" svg "image/svg+xml")
set(_page_data "")
set(_page_table "")
set(_page_files "")
set(_number 0)
foreach(_file IN ITEMS
    /=index.html /board.css=board.css /icon.svg=icon.svg /main.js=main.js /api.js=api.js
    /charts.js=charts.js /compare.js=compare.js /dom.js=dom.js /export.js=export.js
    /format.js=format.js /heat.js=heat.js /logs.js=logs.js /overview.js=overview.js
    /run.js=run.js /runs.js=runs.js /tabs.js=tabs.js /timeline.js=timeline.js
    /dygraph.js=${LOCKSTEP_DYGRAPHS}/dygraph.min.js /dygraph.css=${LOCKSTEP_DYGRAPHS}/dygraph.min.css)
  string(REGEX MATCH "^([^=]+)=(.+)$" _ "${_file}")
  set(_path "${CMAKE_MATCH_1}")
  get_filename_component(_source "${CMAKE_MATCH_2}" ABSOLUTE BASE_DIR "${_page}")
  get_filename_component(_ending "${_source}" LAST_EXT)
  string(SUBSTRING "${_ending}" 1 -1 _ending)
  list(FIND _page_types "${_ending}" _place)
  math(EXPR _place "${_place} + 1")
  list(GET _page_types ${_place} _type)
  string(APPEND _page_data "LOCKSTEP_PAGE_FILE(${_number}, \"${_source}\")\n")
  string(APPEND _page_table
         "    {\"${_path}\", \"${_type}\", {page_${_number}, page_${_number}_end}},\n")
  list(APPEND _page_files "${_source}")
  math(EXPR _number "${_number} + 1")
endforeach()
configure_file(board/page_data.cpp.in board/page_data.cpp @ONLY)
set_source_files_properties("${CMAKE_CURRENT_BINARY_DIR}/board/page_data.cpp" PROPERTIES
                            OBJECT_DEPENDS "${_page_files}")
add_library(lockstep_board_page STATIC board/http_server.cpp
            "${CMAKE_CURRENT_BINARY_DIR}/board/page_data.cpp")
target_include_directories(lockstep_board_page SYSTEM PRIVATE "${LOCKSTEP_HTTPLIB_INCLUDE}"
                           "${LOCKSTEP_JSON_INCLUDE}")
# With the macros that the library was built with: without them its types would be others.
get_filename_component(_folder "${LOCKSTEP_HTTPLIB_LIBRARY}" DIRECTORY)
set(_macros "")
if(EXISTS "${_folder}/pkgconfig/cpp-httplib.pc")
  file(STRINGS "${_folder}/pkgconfig/cpp-httplib.pc" _line REGEX "^Cflags")
  string(REGEX MATCHALL "CPPHTTPLIB_[A-Z_]+" _macros "${_line}")
endif()
target_compile_definitions(lockstep_board_page PRIVATE ${_macros})
target_compile_options(lockstep_board_page PRIVATE "$<$<CONFIG:Release>:-O1>")
target_link_libraries(lockstep_board_page PUBLIC lockstep_board
                      PRIVATE "${LOCKSTEP_HTTPLIB_LIBRARY}" lockstep_options)
lockstep_without_paths(lockstep_board_page)
