# cmake -DSOURCE=<tree> -DOUTPUT=<header> -P WriteCommit.cmake: the commit that is built, for `lockstep --version`.
#
# Empty where the tree is no git tree of its own, and where SOURCE_DATE_EPOCH asks for a build that depends on the
# sources alone: an unpacked archive has the same sources and no commit. Written only when it has changed.
set(_commit "")
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH} AND EXISTS "${SOURCE}/.git")
  execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE _found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE _failed)
  if(NOT _failed)
    set(_commit "${_found}")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#pragma once\n#define LOCKSTEP_COMMIT \"${_commit}\"\n")
