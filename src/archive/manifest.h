#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace lockstep {

/// What manifest.json, the last file of a snapshot to be written, says about the others.
struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::uint64_t checksum = 0;  // core/checksum.h

    friend bool operator==(const File&, const File&) = default;
  };

  std::int64_t step = 0;
  std::int64_t epoch = 0;     // of the membership that wrote it
  std::int64_t sequence = 0;  // counts the saves of a directory: the highest is the newest
  int slots = 1;
  std::uint64_t seed = 0;
  bool best = false;      // of all so far, when it was written
  std::string time = {};  // "2026-11-15T17:05:00Z"; for people
  std::string host = {};
  std::map<std::string, File> files = {};  // by name, without folders

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// JSON with a checksum of its own.
std::string format_manifest(const Manifest& manifest);

/// The reverse. Accepts only what format_manifest() writes, byte for byte. Throws InvalidArgument.
Manifest parse_manifest(std::string_view text);

}  // namespace lockstep
