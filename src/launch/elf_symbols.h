#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// The names of functions in a program or library of this machine's format. A file that cannot be
/// read, is none or is damaged has no names.
class ElfSymbols {
 public:
  explicit ElfSymbols(const std::string& path);
  ~ElfSymbols();
  ElfSymbols(const ElfSymbols&) = delete;
  ElfSymbols& operator=(const ElfSymbols&) = delete;

  /// The function that spans this address of the file, mangled; empty where there is none.
  std::string_view function_at(std::uint64_t address) const;

 private:
  struct Table {
    std::size_t symbols = 0, symbols_end = 0;  // places in the file
    std::size_t names = 0, names_end = 0;
  };

  void find_table();

  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Table table_;
};

}  // namespace lockstep
