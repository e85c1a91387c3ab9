# track: what is kept of a run, for people and for other tools.
lockstep_layer(track LIBRARIES lockstep::core SOURCES
  track/append_file.cpp
  track/flat_config.cpp
  track/gpu_sensors.cpp
  track/jsonl_sink.cpp
  track/metrics_file.cpp
  track/proc_files.cpp
  track/sink_runner.cpp
  track/system_sampler.cpp
  track/tensorboard_sink.cpp
  track/tracker.cpp
  track/tracking_options.cpp
  track/wandb_code.cpp
  track/wandb_file.cpp
  track/wandb_run.cpp
  track/wandb_sink.cpp)
# What it takes to write a line of metrics comes out of the processors that train.
target_compile_options(lockstep_track PRIVATE "$<$<CONFIG:Release>:-O2>")
