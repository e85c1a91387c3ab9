# rpc: remote calls. All but tensors and worlds does without libtorch, so that sanitizers can look at it.
lockstep_layer(rpc LIBRARIES lockstep_shm lockstep::core SOURCES
  rpc/agent.cpp
  rpc/agent_core.cpp
  rpc/agent_parts.cpp
  rpc/agent_serving.cpp
  rpc/call_state.cpp
  rpc/codec.cpp
  rpc/connection.cpp
  rpc/connection_reading.cpp
  rpc/directory.cpp
  rpc/event_loop.cpp
  rpc/failure.cpp
  rpc/handler_pool.cpp
  rpc/inbox.cpp
  rpc/outbox.cpp
  rpc/pending_calls.cpp
  rpc/segment.cpp
  rpc/sockets.cpp
  rpc/wire.cpp)
