# pipeline: models in parts on several devices and ranks.
set(_pipeline pipeline/device_chain.cpp pipeline/pipeline.cpp pipeline/pipeline_state.cpp
    pipeline/pipeline_step.cpp
    pipeline/stage_gradients.cpp pipeline/tensor_line.cpp pipeline/tied_parameters.cpp)
target_sources(lockstep PRIVATE ${_pipeline} pipeline/schedule.cpp pipeline/split.cpp)
target_sources(lockstep PUBLIC FILE_SET HEADERS BASE_DIRS "${LOCKSTEP_INCLUDE}" FILES
  ${LOCKSTEP_INCLUDE}/lockstep/device_chain.h
  ${LOCKSTEP_INCLUDE}/lockstep/model_part.h
  ${LOCKSTEP_INCLUDE}/lockstep/pipeline.h
  ${LOCKSTEP_INCLUDE}/lockstep/pipeline_schedule.h)
set_source_files_properties(pipeline/schedule.cpp pipeline/split.cpp
                            PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
_lockstep_compile_together(pipeline ${_pipeline})
# Part of models: GPT-2 as such a list.
target_sources(lockstep PRIVATE models/gpt2_parts_list.cpp)
target_sources(lockstep PUBLIC FILE_SET HEADERS BASE_DIRS "${LOCKSTEP_INCLUDE}" FILES
  ${LOCKSTEP_INCLUDE}/lockstep/gpt2_parts.h)
