#include "text/regex.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "lockstep/error.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

// PCRE2's declarations for characters of 8 bits, the same in every version since 10.0. Its headers
// are not needed to build.
constexpr std::uint32_t kUtf = 0x00080000, kUcp = 0x00020000, kNoUtfCheck = 0x40000000;
constexpr std::uint32_t kJitComplete = 0x00000001;

struct Pcre2 {
  void* (*compile)(const unsigned char* pattern, std::size_t length, std::uint32_t options,
                   int* error, std::size_t* offset, void* context);
  int (*jit_compile)(void* code, std::uint32_t options);
  void (*code_free)(void* code);
  void* (*match_data_create)(std::uint32_t pairs, void* context);
  void (*match_data_free)(void* data);
  int (*match)(const void* code, const unsigned char* subject, std::size_t length,
               std::size_t start, std::uint32_t options, void* data, void* context);
  std::size_t* (*ovector)(void* data);
  int (*error_message)(int error, unsigned char* buffer, std::size_t length);
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw SystemError(concat("libpcre2-8.so.0 has no ", name));
}

Pcre2 load_pcre2() {
  void* library = ::dlopen("libpcre2-8.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw SystemError(
        "this tokenizer splits text by a pattern of its own, for which libpcre2-8.so.0 is needed "
        "and cannot be loaded (Debian and Ubuntu: apt-get install libpcre2-8-0)");
  }
  Pcre2 pcre2{};
  find(library, "pcre2_compile_8", pcre2.compile);
  find(library, "pcre2_jit_compile_8", pcre2.jit_compile);
  find(library, "pcre2_code_free_8", pcre2.code_free);
  find(library, "pcre2_match_data_create_8", pcre2.match_data_create);
  find(library, "pcre2_match_data_free_8", pcre2.match_data_free);
  find(library, "pcre2_match_8", pcre2.match);
  find(library, "pcre2_get_ovector_pointer_8", pcre2.ovector);
  find(library, "pcre2_get_error_message_8", pcre2.error_message);
  return pcre2;
}

const Pcre2& pcre2() {
  static const Pcre2 loaded = load_pcre2();
  return loaded;
}

std::string message_of(int error) {
  std::array<unsigned char, 160> text{};
  pcre2().error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Regex::Compiled {
  explicit Compiled(void* code) : code(code) {}
  Compiled(const Compiled&) = delete;
  ~Compiled() { pcre2().code_free(code); }
  void* code;
};

Regex::Regex(const std::string& pattern) {
  int error = 0;
  std::size_t offset = 0;
  void* code =
      pcre2().compile(bytes_of(pattern), pattern.size(), kUtf | kUcp, &error, &offset, nullptr);
  if (code == nullptr) {
    throw InvalidArgument(concat("the pattern '", pattern, "' is not understood at character ",
                                 offset, ": ", message_of(error)));
  }
  compiled_ = std::make_shared<const Compiled>(code);
  // Without the just-in-time compiler it works too, slower.
  pcre2().jit_compile(code, kJitComplete);
}

void Regex::for_each_match(std::string_view text,
                           const std::function<void(std::string_view)>& found) const {
  const std::unique_ptr<void, void (*)(void*)> data(pcre2().match_data_create(1, nullptr),
                                                    pcre2().match_data_free);
  if (!data) throw std::bad_alloc();
  std::size_t begin = 0;
  while (begin < text.size()) {
    // Checked here once; left to PCRE2, the rest of the text would be checked again for each match.
    const std::string_view run = text.substr(begin, valid_utf8_prefix(text.substr(begin)));
    std::size_t at = 0;
    while (at < run.size()) {
      const int status = pcre2().match(compiled_->code, bytes_of(run), run.size(), at, kNoUtfCheck,
                                       data.get(), nullptr);
      if (status == -1) break;  // no match
      if (status < 0) {
        throw InvalidArgument(concat("the tokenizer's pattern cannot be matched at byte ",
                                     begin + at, " of a text: ", message_of(status)));
      }
      const std::size_t first = pcre2().ovector(data.get())[0];
      const std::size_t last = pcre2().ovector(data.get())[1];
      if (last > first) found(run.substr(first, last - first));
      // An empty match would be found again and again.
      at = last > first
               ? last
               : last + decode_utf8(bytes_of(run) + last, bytes_of(run) + run.size()).bytes;
      if (last == run.size()) break;
    }
    begin += run.size();
    if (begin < text.size()) ++begin;  // a byte that is not UTF-8
  }
}

}  // namespace lockstep
