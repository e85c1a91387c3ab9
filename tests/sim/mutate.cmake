# cmake -DSOURCE=<file> -DOUTPUT=<file> -P mutate.cmake: a copy of the source with every bug that
# mutations.cmake has for it, each behind a question whether it is planted.
get_filename_component(name_of_source "${SOURCE}" NAME)
file(READ "${SOURCE}" code)

function(mutation name source statements replacement)
  if(NOT source STREQUAL name_of_source)
    return()
  endif()
  string(REPLACE "${statements}" "" without "${code}")
  string(LENGTH "${code}" length)
  string(LENGTH "${without}" length_without)
  string(LENGTH "${statements}" length_of_statements)
  math(EXPR removed "${length} - ${length_without}")
  if(NOT removed EQUAL length_of_statements)
    message(FATAL_ERROR "mutation ${name}: ${source} does not hold this exactly once; "
                        "adapt tests/sim/mutations.cmake:\n${statements}")
  endif()
  string(REPLACE "${statements}"
         "if (sim::planted(\"${name}\")) {\n${replacement}\n} else {\n${statements}\n}"
         code "${code}")
  set(code "${code}" PARENT_SCOPE)
endfunction()

include("${CMAKE_CURRENT_LIST_DIR}/mutations.cmake")
file(WRITE "${OUTPUT}" "#include \"sim/planted.h\"\n${code}")
