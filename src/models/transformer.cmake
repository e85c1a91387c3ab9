# Part of models: the encoder-decoder Transformer and the search for translations.
lockstep_directing_sources(models
  models/beam_search.cpp
  models/transformer.cpp
  models/transformer_layers.cpp)
target_sources(lockstep PUBLIC FILE_SET HEADERS BASE_DIRS "${LOCKSTEP_INCLUDE}" FILES
  ${LOCKSTEP_INCLUDE}/lockstep/beam_search.h
  ${LOCKSTEP_INCLUDE}/lockstep/transformer.h)
