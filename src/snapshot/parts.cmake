# Snapshots that every rank has a share in.
target_sources(lockstep PRIVATE snapshot/shared_save.cpp snapshot/snapshot_ranges.cpp)
set_source_files_properties(snapshot/shared_save.cpp snapshot/snapshot_ranges.cpp PROPERTIES
  SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
