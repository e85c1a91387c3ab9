#pragma once

#include <chrono>
#include <string>

#include "doctor/finding.h"

namespace lockstep {

/// How a file system that nodes share behaves, as one node sees it.
struct SharedFolderFacts {
  std::string path;
  std::string kind;     // "nfs", "lustre", "tmpfs"; empty: unknown
  std::string problem;  // nothing could be tried at all

  // Each is empty where it works, else what went wrong.
  std::string exclusive_create;  // the second of two that create the same file must be refused
  std::string rename;            // takes the place of another file, whole
  std::string sync;              // of a file and of its folder
  std::string lock;              // flock()
  std::chrono::microseconds sync_time{0};
};

/// Tries it, in a folder of its own that is removed again.
SharedFolderFacts read_shared_folder(const std::string& path);

void judge_shared_folder(const SharedFolderFacts& facts, FindingList& list);

/// The name of the kind of file system that a folder is on.
std::string file_system_of(const std::string& path);

}  // namespace lockstep
