# rpc: what needs libtorch.
lockstep_computing_sources(ddp_and_rpc
  rpc/tensor_codec.cpp
  rpc/world_agent.cpp)
target_sources(lockstep PRIVATE $<TARGET_OBJECTS:lockstep_rpc>)
target_sources(lockstep PUBLIC FILE_SET HEADERS FILES
  ${LOCKSTEP_INCLUDE}/lockstep/rpc.h
  ${LOCKSTEP_INCLUDE}/lockstep/rpc_codec.h
  ${LOCKSTEP_INCLUDE}/lockstep/rpc_error.h
  ${LOCKSTEP_INCLUDE}/lockstep/rpc_future.h)
