#pragma once

#include <string>
#include <string_view>

#include "doctor/finding.h"
#include "lockstep/environment.h"

namespace lockstep {

/// The Python that `lockstep run` would start scripts with, and the torch that it would import.
struct PythonFacts {
  std::string python;  // its path; empty: there is none
  std::string version;
  std::string problem;  // why there is none, or why it does not answer

  std::string torch_folder;  // empty: it has no torch
  std::string torch_version;
  std::string torch_cuda;    // the version of CUDA that it was built for; empty: none
  std::string nccl_library;  // the one that comes with it; empty: none

  bool has_torch() const { return !torch_folder.empty(); }
};

/// Starts that Python once; torch is looked for, not imported, which would take seconds.
PythonFacts read_python(const Environment& environment);

/// What the Python printed: lines "name value". Unknown names are left alone.
void read_python_answer(std::string_view text, PythonFacts& facts);

void judge_python(const PythonFacts& facts, FindingList& list);

}  // namespace lockstep
