#pragma once

#include <cstddef>

// Between the library and the plugin that reads Parquet and Arrow files. The plugin is loaded when
// such a file is read, because Arrow's libraries are large and few runs need them. C, so that
// neither side's exceptions or classes reach the other.

extern "C" {

struct LockstepArrowText {
  const char* data;  // nullptr: null
  std::size_t bytes;
};

struct LockstepArrowReader {
  void* context;
  // Called first. A field of a struct has the name "column.field". Sets wanted[i] for each column
  // that is to be read; all of those must be texts. Returns false to stop.
  bool (*columns)(void* context, const char* const* names, std::size_t count, bool* wanted);
  // Called for each row with the wanted columns, in the order of the file. Returns false to stop.
  bool (*row)(void* context, const LockstepArrowText* values, std::size_t count);
};

// Returns false, and what is wrong in `error`, for a file that cannot be read. A stop is no error.
using LockstepArrowRead = bool (*)(const char* path, const LockstepArrowReader* reader, char* error,
                                   std::size_t error_bytes);
}

// What the plugin exports.
#define LOCKSTEP_ARROW_READ "lockstep_arrow_read_v1"
