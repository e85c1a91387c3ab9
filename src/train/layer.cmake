# train: the Trainer, the recovering step loop, callbacks, progress.
target_sources(lockstep PRIVATE
  train/broadcast_module.cpp
  train/carry_over.cpp
  train/cpu_memory.cpp
  train/cuda_graph_recorder.cpp
  train/evaluation.cpp
  train/gradient_norm.cpp
  train/gradient_step.cpp
  train/graph_recorder.cpp
  train/graphed_step.cpp
  train/host_random_watch.cpp
  train/metric_watch.cpp
  train/part_standing.cpp
  train/progress.cpp
  train/random_scope.cpp
  train/recoverable.cpp
  train/run_curves.cpp
  train/run_journal.cpp
  train/run_state.cpp
  train/slot_gradients.cpp
  train/slot_sums.cpp
  train/state_stream.cpp
  train/state_transfer.cpp
  train/step_clock.cpp
  train/step_graphs.cpp
  train/step_profiler.cpp
  train/step_transaction.cpp
  train/stop_watch.cpp
  train/trainer.cpp
  train/trainer_core.cpp
  train/trainer_recovery.cpp
  train/trainer_replicas.cpp
  train/trainer_reports.cpp
  train/trainer_shard.cpp
  train/trainer_shard_recovery.cpp
  train/trainer_step.cpp)
target_sources(lockstep PUBLIC FILE_SET HEADERS BASE_DIRS "${LOCKSTEP_INCLUDE}" FILES
  ${LOCKSTEP_INCLUDE}/lockstep/callback.h
  ${LOCKSTEP_INCLUDE}/lockstep/cpu_memory.h
  ${LOCKSTEP_INCLUDE}/lockstep/graphed_step.h
  ${LOCKSTEP_INCLUDE}/lockstep/metric_watch.h
  ${LOCKSTEP_INCLUDE}/lockstep/progress.h
  ${LOCKSTEP_INCLUDE}/lockstep/random_scope.h
  ${LOCKSTEP_INCLUDE}/lockstep/recoverable.h
  ${LOCKSTEP_INCLUDE}/lockstep/step_profiler.h
  ${LOCKSTEP_INCLUDE}/lockstep/step_transaction.h
  ${LOCKSTEP_INCLUDE}/lockstep/trainer.h
  ${LOCKSTEP_INCLUDE}/lockstep/trainer_options.h
  ${LOCKSTEP_INCLUDE}/lockstep/training_task.h)
set_source_files_properties(
  train/cpu_memory.cpp train/cuda_graph_recorder.cpp train/gradient_norm.cpp
  train/graph_recorder.cpp train/graphed_step.cpp train/host_random_watch.cpp
  train/metric_watch.cpp train/progress.cpp train/random_scope.cpp train/run_curves.cpp
  train/run_journal.cpp train/slot_gradients.cpp train/step_graphs.cpp train/step_profiler.cpp
  train/stop_watch.cpp
  PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
_lockstep_compile_together(steps train/gradient_step.cpp train/slot_sums.cpp
                           train/step_transaction.cpp train/trainer_step.cpp)
_lockstep_compile_together(trainer train/evaluation.cpp train/run_state.cpp train/trainer_core.cpp
                           train/trainer_recovery.cpp train/trainer_replicas.cpp
                           train/trainer_reports.cpp train/trainer_shard.cpp train/trainer_shard_recovery.cpp)
_lockstep_compile_together(recovery train/carry_over.cpp train/part_standing.cpp train/recoverable.cpp
                           train/state_stream.cpp train/state_transfer.cpp)
