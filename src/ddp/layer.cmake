# ddp: DistributedDataParallel, communication hooks, join, SyncBatchNorm.
target_sources(lockstep PRIVATE
  ddp/backward_watch.cpp
  ddp/batch_statistics.cpp
  ddp/comm_hooks.cpp
  ddp/compressed_buckets.cpp
  ddp/compression.cpp
  ddp/compression_options.cpp
  ddp/engine.cpp
  ddp/gradient_homes.cpp
  ddp/int8_compression.cpp
  ddp/join.cpp
  ddp/local_sgd.cpp
  ddp/module_walk.cpp
  ddp/orthogonalize.cpp
  ddp/power_sgd.cpp
  ddp/reducer_factory.cpp
  ddp/sync_batch_norm.cpp
  ddp/verify.cpp)
set_source_files_properties(
  ddp/batch_statistics.cpp ddp/compression.cpp ddp/compression_options.cpp ddp/int8_compression.cpp
  ddp/module_walk.cpp ddp/orthogonalize.cpp ddp/power_sgd.cpp
  PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
_lockstep_compile_together(reducer ddp/backward_watch.cpp ddp/engine.cpp ddp/gradient_homes.cpp
                           ddp/reducer_factory.cpp)
_lockstep_compile_together(around_ddp ddp/comm_hooks.cpp ddp/compressed_buckets.cpp ddp/join.cpp
                           ddp/local_sgd.cpp ddp/sync_batch_norm.cpp ddp/verify.cpp)
