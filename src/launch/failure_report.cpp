#include "launch/failure_report.h"

#include <algorithm>
#include <sstream>

#include "core/rank_list.h"
#include "launch/terminal_text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kStderrLines = 20;
constexpr std::size_t kCallstackLines = 12;
constexpr std::size_t kMessageLines = 10;
constexpr std::size_t kOthersInFull = 16;
constexpr std::size_t kMaxSummary = 160;  // bytes of an error message that shares its line
constexpr std::string_view kQuote = "    | ";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class ReportWriter {
 public:
  explicit ReportWriter(const ReportStyle& style) : style_(style) {}

  void heading(const std::string& text, bool alarm) {
    const char* colour = alarm ? "\033[1;31m" : "\033[1m";
    out_ << (style_.colour ? colour : "") << text << (style_.colour ? "\033[0m" : "") << '\n';
  }

  void blank() { out_ << '\n'; }

  /// "  label   text", the text wrapped.
  void labelled(const std::string& label, const std::string& text) {
    constexpr std::size_t kLabelWidth = 8;
    std::string first = "  " + label;
    first.resize(std::max(first.size() + 1, 2 + kLabelWidth), ' ');
    wrapped(first, std::string(first.size(), ' '), text);
  }

  void line(const std::string& text) { out_ << text << '\n'; }

  void quoted(const std::vector<std::string>& lines) {
    for (const std::string& text : lines) out_ << kQuote << clean(text) << '\n';
  }

  static std::string clean(const std::string& text) { return without_controls(final_state(text)); }

  std::string take() { return std::move(out_).str(); }

  /// Breaks at blanks only: a path or an address that is too long stays whole.
  void wrapped(const std::string& first, const std::string& further, const std::string& text) {
    std::string current = first;
    bool empty = true;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      if (!empty && current.size() + 1 + word.size() > style_.columns) {
        out_ << current << '\n';
        current = further;
        empty = true;
      }
      if (!empty) current += ' ';
      current += word;
      empty = false;
    }
    out_ << current << '\n';
  }

 private:
  ReportStyle style_;
  std::ostringstream out_;
};

std::string place_of(const WorkerFailure& failure) {
  return concat("rank ", failure.rank, failure.host.empty() ? "" : " on ",
                ReportWriter::clean(failure.host));
}

// The lines of a call stack that matter: Python prints the innermost call last, we print it first.
std::vector<std::string> innermost(const std::string& callstack) {
  std::vector<std::string> lines = lines_of(callstack);
  if (lines.size() <= kCallstackLines) return lines;
  const bool first = callstack.find("most recent call first") != std::string::npos;
  const auto surplus = static_cast<std::ptrdiff_t>(lines.size() - kCallstackLines);
  if (first) {
    lines.erase(lines.end() - surplus, lines.end());
  } else {
    lines.erase(lines.begin(), lines.begin() + surplus);
  }
  return lines;
}

// Python prints an exception that its error file holds to standard error too. Once is enough.
bool shown_in(const std::vector<std::string>& tail, const std::vector<std::string>& stack) {
  return std::ranges::all_of(stack, [&](const std::string& line) {
    return line.empty() || std::ranges::find(tail, line) != tail.end();
  });
}

void write_error(ReportWriter& out, const WorkerFailure& failure) {
  if (!failure.error) return;
  const ErrorFile& error = *failure.error;
  if (!error.malformed.empty()) {
    out.labelled("error",
                 concat("its error file '", error.path, "' says nothing: ", error.malformed));
    return;
  }
  std::vector<std::string> message = lines_of(error.message);
  if (message.size() > kMessageLines) message.resize(kMessageLines);
  for (std::size_t i = 0; i < message.size(); ++i) {
    out.line(concat(i == 0 ? "  error   " : "          ", ReportWriter::clean(message[i])));
  }
  const std::vector<std::string> stack = innermost(error.callstack);
  if (!stack.empty() && !shown_in(failure.stderr_tail, stack)) {
    out.line("  Its call stack:");
    out.quoted(stack);
  }
}

void write_stderr(ReportWriter& out, const WorkerFailure& failure) {
  std::vector<std::string> tail = failure.stderr_tail;
  if (tail.size() > kStderrLines) tail.erase(tail.begin(), tail.end() - kStderrLines);
  if (tail.empty()) {
    out.line("  It wrote nothing to its standard error.");
    return;
  }
  out.line(tail.size() == 1 ? "  The last line of its standard error:"
                            : concat("  The last ", tail.size(), " lines of its standard error:"));
  out.quoted(tail);
}

void write_first(ReportWriter& out, const WorkerFailure& failure) {
  out.heading(concat("First failure: ", place_of(failure), ": ", failure.status.describe()), true);
  std::string who = concat("local rank ", failure.local_rank, " of node ", failure.node_rank,
                           ", pid ", failure.pid);
  if (failure.restart_count > 0) who += concat(", after restart ", failure.restart_count);
  out.labelled("worker", who);
  if (!failure.time.empty()) out.labelled("time", failure.time);
  if (!failure.log_path.empty()) out.labelled("log", failure.log_path);
  write_error(out, failure);
  write_stderr(out, failure);
  std::string hint = hint_for(failure.status);
  if (hint.empty() && !failure.error && failure.stderr_tail.empty()) {
    hint =
        "Wrap the program's main in lockstep::record (C++) or @record of "
        "torch.distributed.elastic.multiprocessing.errors (Python), and its error shows here.";
  }
  if (!hint.empty()) out.wrapped("  Hint: ", "        ", hint);
}

void write_others(ReportWriter& out, const FailureReport& report) {
  const std::vector<WorkerFailure>& others = report.others;
  if (others.empty()) return;
  out.blank();
  out.heading("Failed after it:", false);
  for (std::size_t i = 0; i < std::min(others.size(), kOthersInFull); ++i) {
    const WorkerFailure& other = others[i];
    std::string summary = concat("  ", place_of(other), ": ", other.status.describe());
    const std::string said = other.error                 ? first_line(other.error->message)
                             : other.stderr_tail.empty() ? ""
                                                         : other.stderr_tail.back();
    if (!said.empty()) summary += ": " + clipped(ReportWriter::clean(said), kMaxSummary);
    out.line(summary);
  }
  std::vector<int> rest = report.more_failed;
  if (others.size() > kOthersInFull || !rest.empty()) {
    for (std::size_t i = kOthersInFull; i < others.size(); ++i) rest.push_back(others[i].rank);
    out.wrapped("  ", "    ", concat("and ", rest.size(), " more: ", list_ranks(rest)));
  }
}

}  // namespace

std::string to_text(const FailureReport& report, const ReportStyle& style) {
  ReportWriter out(style);
  out.heading(concat("lockstep: ", report.program.empty() ? "the job" : report.program, " failed",
                     report.reason.empty() ? "" : ": ", report.reason),
              false);
  if (report.first) {
    out.blank();
    write_first(out, *report.first);
  }
  write_others(out, report);
  if (!report.stopped_ranks.empty()) {
    out.blank();
    out.wrapped(
        "", "  ",
        concat("Stopped by the launcher because of this: ", list_ranks(report.stopped_ranks)));
  }
  return out.take();
}

std::string error_file_for_parent(const WorkerFailure& failure) {
  const int code = failure.status.signal != 0 ? -failure.status.signal : failure.status.exit_code;
  if (failure.error && failure.error->malformed.empty()) {
    return error_file_for_parent(*failure.error, code);
  }
  ErrorFile made;
  made.message = concat(place_of(failure), ": ", failure.status.describe());
  for (const std::string& line : failure.stderr_tail) made.callstack += line + "\n";
  return error_file_for_parent(made, code);
}

}  // namespace lockstep
