# shard: ShardedDataParallel, and how much memory it takes.
lockstep_directing_sources(shard
  shard/boundaries.cpp
  shard/copy_places.cpp
  shard/engine.cpp
  shard/engine_state.cpp
  shard/flat_layout.cpp
  shard/flat_unit.cpp
  shard/memory_report.cpp
  shard/part_copy.cpp
  shard/shard_exchange.cpp)
lockstep_computing_sources(models models/gpt2_memory.cpp shard/memory_plan.cpp)
target_sources(lockstep PUBLIC FILE_SET HEADERS BASE_DIRS "${LOCKSTEP_INCLUDE}" FILES
  ${LOCKSTEP_INCLUDE}/lockstep/gpt2_memory.h
  ${LOCKSTEP_INCLUDE}/lockstep/memory_plan.h
  ${LOCKSTEP_INCLUDE}/lockstep/memory_report.h)
