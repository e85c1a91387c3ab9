# pipeline: models in parts on several devices and ranks.
lockstep_directing_sources(pipeline
  pipeline/device_chain.cpp
  pipeline/pipeline.cpp
  pipeline/pipeline_state.cpp
  pipeline/pipeline_step.cpp
  pipeline/stage_gradients.cpp
  pipeline/tensor_line.cpp
  pipeline/tied_parameters.cpp)
lockstep_computing_sources(models
  pipeline/schedule.cpp
  pipeline/split.cpp)
target_sources(lockstep PUBLIC FILE_SET HEADERS BASE_DIRS "${LOCKSTEP_INCLUDE}" FILES
  ${LOCKSTEP_INCLUDE}/lockstep/device_chain.h
  ${LOCKSTEP_INCLUDE}/lockstep/model_part.h
  ${LOCKSTEP_INCLUDE}/lockstep/pipeline.h
  ${LOCKSTEP_INCLUDE}/lockstep/pipeline_schedule.h)
# Part of models: GPT-2 as such a list.
lockstep_directing_sources(models models/gpt2_parts_list.cpp)
target_sources(lockstep PUBLIC FILE_SET HEADERS BASE_DIRS "${LOCKSTEP_INCLUDE}" FILES
  ${LOCKSTEP_INCLUDE}/lockstep/gpt2_parts.h)
