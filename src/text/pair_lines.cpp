// Pairs of sentences in plain files: tables with tabs, and parallel lines.
#include "text/pair_lines.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestQuote = 40;  // of a line, in a message

// The lines of a text; what stands after the last newline is one where it is not empty.
class SentenceLines {
 public:
  explicit SentenceLines(const NamedText& text) : rest_(text.text), file_(text.file) {
    if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);  // a byte order mark
  }

  std::optional<std::string_view> next() {
    if (rest_.empty()) return std::nullopt;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++number_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t valid = valid_utf8_prefix(line);
    if (valid != line.size()) {
      throw InvalidArgument(concat(place(), " is not UTF-8: wrong at byte ", valid + 1, " of ",
                                   line.size(), "; convert the file first (iconv -t UTF-8)"));
    }
    return line;
  }

  std::int64_t number() const { return number_; }

  std::string place() const { return concat("'", file_, "': line ", number_); }

  /// How many lines there are in all, from here on without a look at them.
  std::int64_t count_all() const {
    const auto newlines = std::count(rest_.begin(), rest_.end(), '\n');
    const bool open_end = !rest_.empty() && !rest_.ends_with('\n');
    return number_ + static_cast<std::int64_t>(newlines) + (open_end ? 1 : 0);
  }

 private:
  std::string_view rest_;
  const std::string& file_;
  std::int64_t number_ = 0;
};

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const std::size_t tab = std::min(line.find('\t'), line.size());
    cells.push_back(trimmed_sentence(line.substr(0, tab)));
    if (tab == line.size()) return cells;
    line.remove_prefix(tab + 1);
  }
}

// The beginning of a line as a message shows it; not cut within a character.
std::string quoted(std::string_view line) {
  if (line.size() <= kLongestQuote) return concat("'", line, "'");
  std::size_t end = kLongestQuote;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;
  return concat("'", line.substr(0, end), "...'");
}

void give_pair(std::string_view source, std::string_view target, const TakePair& take) {
  if (source.empty() && target.empty()) return;
  take({std::string(source), std::string(target)});
}

}  // namespace

std::string_view trimmed_sentence(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

void parse_pair_table(const NamedText& table, const std::string& source_name,
                      const std::string& target_name, const TakePair& take) {
  SentenceLines lines(table);
  std::size_t source_column = 0, target_column = 1;
  bool first = true;
  while (const auto line = lines.next()) {
    if (trimmed_sentence(*line).empty()) continue;
    const std::vector<std::string_view> cells = cells_of(*line);
    if (std::exchange(first, false)) {
      const auto source = std::find(cells.begin(), cells.end(), source_name);
      const auto target = std::find(cells.begin(), cells.end(), target_name);
      if (source != cells.end() && target != cells.end()) {
        source_column = static_cast<std::size_t>(source - cells.begin());
        target_column = static_cast<std::size_t>(target - cells.begin());
        continue;
      }
    }
    const std::size_t needed = std::max(source_column, target_column) + 1;
    if (cells.size() < needed) {
      throw InvalidArgument(
          concat(lines.place(), cells.size() == 1 ? " has no tab" : " has too few columns", ": ",
                 quoted(*line), "; ",
                 needed == 2 ? "a pair is a source, a tab and a target"
                             : concat("the header asks for ", needed, " columns")));
    }
    give_pair(cells[source_column], cells[target_column], take);
  }
}

void parse_parallel_lines(const NamedText& sources, const NamedText& targets,
                          const TakePair& take) {
  SentenceLines source_lines(sources), target_lines(targets);
  const std::int64_t source_count = source_lines.count_all();
  const std::int64_t target_count = target_lines.count_all();
  if (source_count != target_count) {
    throw InvalidArgument(concat("'", sources.file, "' has ", source_count, " lines and '",
                                 targets.file, "' ", target_count,
                                 "; the lines of parallel files belong together one by one"));
  }
  while (const auto source = source_lines.next()) {
    const auto target = target_lines.next();
    give_pair(trimmed_sentence(*source), trimmed_sentence(*target), take);
  }
}

}  // namespace lockstep
