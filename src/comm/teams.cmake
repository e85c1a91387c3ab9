# Part of comm: how the ranks of a group work together, in memory that they share and between machines.
lockstep_directing_sources(exchange
  comm/ordered_reduction.cpp
  comm/ordered_sparse.cpp
  comm/segment_agreement.cpp
  comm/shared_tensors.cpp
  comm/shm_backend.cpp
  comm/shm_formation.cpp
  comm/shm_message.cpp
  comm/shm_tensors.cpp
  comm/small_values.cpp)
lockstep_directing_sources(teams
  comm/group_team.cpp
  comm/group_team_accord.cpp
  comm/group_team_gather.cpp
  comm/group_team_reduce.cpp
  comm/group_team_spread.cpp
  comm/shm_channel.cpp)
