# rpc: what needs libtorch.
target_sources(lockstep PRIVATE rpc/tensor_codec.cpp rpc/world_agent.cpp
               $<TARGET_OBJECTS:lockstep_rpc>)
set_source_files_properties(rpc/tensor_codec.cpp rpc/world_agent.cpp PROPERTIES
  SKIP_PRECOMPILE_HEADERS ON)
target_sources(lockstep PUBLIC FILE_SET HEADERS FILES
  ${LOCKSTEP_INCLUDE}/lockstep/rpc.h
  ${LOCKSTEP_INCLUDE}/lockstep/rpc_codec.h
  ${LOCKSTEP_INCLUDE}/lockstep/rpc_error.h
  ${LOCKSTEP_INCLUDE}/lockstep/rpc_future.h)
