#include "launch/loaded_modules.h"

#include <cxxabi.h>
#include <elf.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "launch/elf_symbols.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxSymbol = 300;  // templates can be longer than anyone reads
constexpr int kMaxProgramHeaders = 64;

// What the headers in memory tell beyond the kernel's list. False: this is no program or library.
bool read_headers(const ProcessMemory& memory, LoadedModule& module) {
  const auto header = memory.read<Elf64_Ehdr>(module.begin);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64) {
    return false;
  }
  bool first = true;
  for (int index = 0; index < std::min<int>(header->e_phnum, kMaxProgramHeaders); ++index) {
    const auto part =
        memory.read<Elf64_Phdr>(module.begin + header->e_phoff + index * sizeof(Elf64_Phdr));
    if (!part) return false;
    if (part->p_type == PT_LOAD && first) {
      module.bias = module.begin - (part->p_vaddr - part->p_offset);
      first = false;
    }
    if (part->p_type == PT_GNU_EH_FRAME) module.eh_frame_header = part->p_vaddr;
  }
  if (module.eh_frame_header != 0) module.eh_frame_header += module.bias;
  return !first;
}

std::string demangled(std::string_view name) {
  int status = 0;
  char* text = abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 && text != nullptr ? text : std::string(name);
  std::free(text);
  if (result.size() > kMaxSymbol) result = result.substr(0, kMaxSymbol) + "...";
  return result;
}

}  // namespace

LoadedModules::LoadedModules(pid_t pid, const ProcessMemory& memory) : pid_(pid) {
  std::ifstream maps(concat("/proc/", pid, "/maps"));
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, permissions, offset, device, inode, path;
    words >> range >> permissions >> offset >> device >> inode;
    std::getline(words >> std::ws, path);
    const std::size_t dash = range.find('-');
    if (path.empty() || (path.front() != '/' && path != "[vdso]") || dash == std::string::npos) {
      continue;
    }
    const std::uint64_t begin = std::stoull(range, nullptr, 16);
    const std::uint64_t end = std::stoull(range.substr(dash + 1), nullptr, 16);
    const bool starts = std::stoull(offset, nullptr, 16) == 0;
    if (!modules_.empty() && modules_.back().path == path && !starts) {
      modules_.back().end = end;
      continue;
    }
    LoadedModule module{.begin = begin, .end = end, .path = path};
    if (read_headers(memory, module)) modules_.push_back(module);
  }
}

LoadedModules::~LoadedModules() = default;

const LoadedModule* LoadedModules::find(std::uint64_t address) const {
  const auto after = std::ranges::upper_bound(modules_, address, {}, &LoadedModule::begin);
  if (after == modules_.begin() || address >= std::prev(after)->end) return nullptr;
  return &*std::prev(after);
}

std::string LoadedModules::describe(std::uint64_t address, bool is_return_address) {
  const std::uint64_t place = is_return_address ? address - 1 : address;
  if (const auto found = known_.find(place); found != known_.end()) return found->second;
  const LoadedModule* module = find(place);
  if (module == nullptr) return "??";
  // Through the process's own root, which may be that of a container.
  auto& symbols = symbols_[module->path];
  if (!symbols) {
    symbols = std::make_unique<ElfSymbols>(concat("/proc/", pid_, "/root", module->path));
  }
  const std::string name = demangled(symbols->function_at(place - module->bias));
  std::ostringstream text;
  text << name << (name.empty() ? "(" : " (") << module->path.substr(module->path.rfind('/') + 1)
       << "+0x" << std::hex << place - module->bias << ")";
  return known_[place] = text.str();
}

}  // namespace lockstep
