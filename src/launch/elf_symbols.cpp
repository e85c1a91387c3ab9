#include "launch/elf_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <cstring>

#include "core/unique_fd.h"

namespace lockstep {
namespace {

// A structure at a place of the file; zeros beyond its end.
template <typename T>
T at(const std::byte* data, std::size_t bytes, std::size_t place) {
  T value{};
  if (place <= bytes && sizeof(T) <= bytes - place) std::memcpy(&value, data + place, sizeof(T));
  return value;
}

}  // namespace

ElfSymbols::ElfSymbols(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info = {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    return;
  }
  bytes_ = static_cast<std::size_t>(info.st_size);
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) return;
  data_ = static_cast<const std::byte*>(mapped);
  find_table();
}

ElfSymbols::~ElfSymbols() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), bytes_);
}

// The full table, which stripped files do not have, else that of what other files may use.
void ElfSymbols::find_table() {
  const auto header = at<Elf64_Ehdr>(data_, bytes_, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr)) {
    return;
  }
  const auto section = [&](std::size_t index) {
    return at<Elf64_Shdr>(data_, bytes_, header.e_shoff + index * sizeof(Elf64_Shdr));
  };
  for (const unsigned wanted : {SHT_SYMTAB, SHT_DYNSYM}) {
    for (std::size_t index = 0; index < header.e_shnum; ++index) {
      const Elf64_Shdr symbols = section(index);
      if (symbols.sh_type != wanted) continue;
      const Elf64_Shdr names = section(symbols.sh_link);
      const auto inside = [&](const Elf64_Shdr& part) {
        return part.sh_offset <= bytes_ && part.sh_size <= bytes_ - part.sh_offset;
      };
      if (!inside(symbols) || !inside(names)) return;
      table_ = {.symbols = symbols.sh_offset,
                .symbols_end = symbols.sh_offset + symbols.sh_size,
                .names = names.sh_offset,
                .names_end = names.sh_offset + names.sh_size};
      return;
    }
  }
}

std::string_view ElfSymbols::function_at(std::uint64_t address) const {
  for (std::size_t place = table_.symbols; place + sizeof(Elf64_Sym) <= table_.symbols_end;
       place += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    std::memcpy(&symbol, data_ + place, sizeof(symbol));
    const auto type = ELF64_ST_TYPE(symbol.st_info);
    if ((type != STT_FUNC && type != STT_GNU_IFUNC) || symbol.st_shndx == SHN_UNDEF) continue;
    if (address < symbol.st_value || address - symbol.st_value >= symbol.st_size) continue;
    if (symbol.st_name >= table_.names_end - table_.names) return {};
    const char* name = reinterpret_cast<const char*>(data_) + table_.names + symbol.st_name;
    return {name, ::strnlen(name, table_.names_end - table_.names - symbol.st_name)};
  }
  return {};
}

}  // namespace lockstep
