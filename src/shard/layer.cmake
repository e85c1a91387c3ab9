# shard: ShardedDataParallel.
target_sources(lockstep PRIVATE
  shard/boundaries.cpp
  shard/engine.cpp
  shard/flat_layout.cpp
  shard/flat_unit.cpp
  shard/shard_exchange.cpp)
_lockstep_compile_together(shard shard/boundaries.cpp shard/engine.cpp shard/flat_layout.cpp
                           shard/flat_unit.cpp shard/shard_exchange.cpp)
