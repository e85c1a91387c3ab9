// Documents in plain text files.
#include <algorithm>
#include <string_view>

#include "text/files.h"
#include "text/record_fields.h"

namespace lockstep {
namespace {

constexpr std::string_view kMarker = "<|endoftext|>";

// The next line with its newline, and without both.
struct Line {
  std::string_view whole;
  std::string_view content;
};

Line take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  Line line;
  line.whole = text.substr(0, end == std::string_view::npos ? text.size() : end + 1);
  line.content = line.whole;
  if (line.content.ends_with('\n')) line.content.remove_suffix(1);
  if (line.content.ends_with('\r')) line.content.remove_suffix(1);
  text.remove_prefix(line.whole.size());
  return line;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

}  // namespace

void read_plain_text(const std::string& path, TextSourceOptions::Documents documents,
                     const TakeRecord& take) {
  using Documents = TextSourceOptions::Documents;
  const MappedFile file(path);
  std::string_view rest = file.text();
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);  // a byte order mark
  const auto give = [&take](std::string_view text) {
    if (!is_blank(text)) take({.text = std::string(text)});
  };
  const char* begin = rest.data();
  std::size_t length = 0;
  while (!rest.empty()) {
    const Line line = take_line(rest);
    if (documents == Documents::line) {
      give(line.content);
      continue;
    }
    const bool ends =
        documents == Documents::marker ? line.content == kMarker : is_blank(line.content);
    if (!ends) {
      length += line.whole.size();
      continue;
    }
    give({begin, length});
    begin = rest.data();
    length = 0;
  }
  if (length > 0) give({begin, length});
}

}  // namespace lockstep
