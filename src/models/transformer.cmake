# Part of models: the encoder-decoder Transformer and the search for translations.
target_sources(lockstep PRIVATE models/beam_search.cpp models/transformer.cpp
               models/transformer_layers.cpp)
target_sources(lockstep PUBLIC FILE_SET HEADERS BASE_DIRS "${LOCKSTEP_INCLUDE}" FILES
  ${LOCKSTEP_INCLUDE}/lockstep/beam_search.h
  ${LOCKSTEP_INCLUDE}/lockstep/transformer.h)
_lockstep_compile_together(transformer models/beam_search.cpp models/transformer.cpp
                           models/transformer_layers.cpp)
