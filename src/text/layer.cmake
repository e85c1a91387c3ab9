# text: tokenizers and what is read with them.
lockstep_layer(text LIBRARIES lockstep::core SOURCES
  text/added_tokens.cpp
  text/arrow_records.cpp
  text/bpe.cpp
  text/byte_alphabet.cpp
  text/embedded_instructions.cpp
  text/embedded_pairs.cpp
  text/files.cpp
  text/gpt2_scanner.cpp
  text/json_records.cpp
  text/metric_tokens.cpp
  text/pair_lines.cpp
  text/plain_text.cpp
  text/prompt_template.cpp
  text/record_fields.cpp
  text/regex.cpp
  text/sentence_pairs.cpp
  text/splitter.cpp
  text/text_source.cpp
  text/token_cache.cpp
  text/token_cache_maker.cpp
  text/token_cache_use.cpp
  text/token_part.cpp
  text/token_table.cpp
  text/tokenizer.cpp
  text/tokenizer_files.cpp
  text/tokenizer_fingerprint.cpp
  text/tokenizer_training.cpp
  text/translation_metrics.cpp
  text/unicode_class.cpp
  text/unicode_ranges.cpp
  text/word_splitter.cpp
  text/word_tokenizer.cpp)

# What reads and writes JSON waits for files, and its templates take the optimizer longer than the rest.
add_library(lockstep_text_files OBJECT
  text/json_fields.cpp
  text/source_files.cpp
  text/token_cache_files.cpp
  text/tokenizer_json.cpp
  text/tokenizer_output.cpp
  text/vocabulary_files.cpp
  text/word_vocabulary.cpp)
target_include_directories(lockstep_text_files PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_include_directories(lockstep_text_files SYSTEM PRIVATE "${LOCKSTEP_JSON_INCLUDE}")
target_link_libraries(lockstep_text_files PRIVATE lockstep::core lockstep_options)
target_compile_options(lockstep_text_files PRIVATE "$<$<CONFIG:Release>:-O1>")
lockstep_compile_in_batches(lockstep_text_files)
lockstep_without_paths(lockstep_text_files)
target_sources(lockstep_text PRIVATE $<TARGET_OBJECTS:lockstep_text_files>)

# What reads Parquet and Arrow files: loaded when one is read (text/arrow_plugin.h).
if(LOCKSTEP_ARROW_LIBRARIES)
  add_library(lockstep_arrow MODULE text/arrow_plugin.cpp)
  target_include_directories(lockstep_arrow PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_include_directories(lockstep_arrow SYSTEM PRIVATE "${LOCKSTEP_ARROW_INCLUDE}")
  target_link_libraries(lockstep_arrow PRIVATE lockstep_options ${LOCKSTEP_ARROW_LIBRARIES})
  target_compile_options(lockstep_arrow PRIVATE "$<$<CONFIG:Release>:-O1>")  # Arrow does the work
  set_target_properties(lockstep_arrow PROPERTIES CXX_VISIBILITY_PRESET hidden
                        LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib"
                        INSTALL_RPATH "${LOCKSTEP_ARROW_FOLDER}")
endif()
