#pragma once

#include <sys/types.h>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/process_memory.h"

namespace lockstep {

class ElfSymbols;

/// A program or library as it lies in the memory of a process.
struct LoadedModule {
  std::uint64_t begin = 0, end = 0;   // the addresses that it spans
  std::uint64_t bias = 0;             // between addresses in the file and in memory
  std::uint64_t eh_frame_header = 0;  // in memory; 0: there is none
  std::string path;                   // "[vdso]" for the kernel's own
};

/// What is loaded where, and what functions are called. Of files it reads what it is asked for.
class LoadedModules {
 public:
  /// Reads the kernel's list and the headers in memory.
  LoadedModules(pid_t pid, const ProcessMemory& memory);
  ~LoadedModules();

  const LoadedModule* find(std::uint64_t address) const;

  /// "train(int) (train_llm+0x1f30)", "(libc.so.6+0xe0)", or "??" outside of all modules. A
  /// return address is that after a call, which belongs to the caller's next line or even to the
  /// next function.
  std::string describe(std::uint64_t address, bool is_return_address);

 private:
  pid_t pid_;
  std::vector<LoadedModule> modules_;                           // by address
  std::map<std::string, std::unique_ptr<ElfSymbols>> symbols_;  // by path
  std::map<std::uint64_t, std::string> known_;                  // by address
};

}  // namespace lockstep
