# archive: files of tensors and directories of snapshots.
lockstep_layer(archive LIBRARIES lockstep::core SOURCES
  archive/checkpoint.cpp
  archive/convert.cpp
  archive/diff.cpp
  archive/directory_lock.cpp
  archive/durable_output.cpp
  archive/element_type.cpp
  archive/element_value.cpp
  archive/file_content.cpp
  archive/manifest.cpp
  archive/optimizer_dict.cpp
  archive/pickle_calls.cpp
  archive/pickle_reader.cpp
  archive/pickle_writer.cpp
  archive/safetensors.cpp
  archive/safetensors_file.cpp
  archive/snapshot_command.cpp
  archive/snapshot_directory.cpp
  archive/snapshot_writer.cpp
  archive/state_file.cpp
  archive/tensor_parts.cpp
  archive/torch_archive.cpp
  archive/zip_reader.cpp
  archive/zip_writer.cpp)
