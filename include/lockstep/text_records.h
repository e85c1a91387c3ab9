#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

/// One document: an instruction with its answer, or a plain text.
struct TextRecord {
  std::string instruction;
  std::string input;  // what the instruction is about; may be empty
  std::string output;
  std::string text;  // of a plain text; then the others are empty

  bool operator==(const TextRecord&) const = default;
};

/// How an instruction is put to a model. "{instruction}" and "{input}" stand for the record's
/// fields.
struct PromptTemplate {
  std::string with_input;
  std::string without_input;  // for records whose input is empty

  /// That of Stanford's Alpaca data.
  static PromptTemplate alpaca();
  /// The instruction, the input and a newline: for small models.
  static PromptTemplate brief();

  /// What stands before the answer; empty for a plain text.
  std::string prompt_of(const TextRecord& record) const;
};

struct TextSourceOptions {
  // Which files of a data set with splits. Where files name no split, all are "train". Of a path
  // that has one split only, whichever it is, "train" gives that one.
  std::string split = "train";

  enum class Kind {
    automatic,    // by the fields of the first record; an instruction where both would do
    instruction,  // needs the fields for instruction and output; that for input may be missing
    text,         // needs the field for text
  };
  Kind kind = Kind::automatic;
  std::string instruction_field = "instruction";
  std::string input_field = "input";
  std::string output_field = "output";
  std::string text_field = "text";

  // What ends a document in a plain text file.
  enum class Documents {
    marker,     // a line that is <|endoftext|>, and the end of a file
    line,       // every line is one; empty lines are skipped
    paragraph,  // an empty line, and the end of a file
  };
  Documents documents = Documents::marker;
};

/// Documents in files, or in memory. Copies are cheap.
///
/// Files: a JSON list of objects (.json), a JSON object a line (.jsonl, .ndjson, also .json), plain
/// text (.txt), Parquet (.parquet) and Arrow (.arrow). Folders: what `datasets` saves or caches, a
/// snapshot of a data set from the hub, or just such files. docs/data.md has the details.
class TextSource {
 public:
  /// Looks for the files. Throws InvalidArgument for a path that has none.
  explicit TextSource(const std::string& path, const TextSourceOptions& options = {});

  /// Records that the program made itself.
  explicit TextSource(std::vector<TextRecord> records);

  /// Calls `take` with every record in order. Throws InvalidArgument for a file or record that is
  /// not as it should be, naming both, and where there is no record at all.
  void for_each(const std::function<void(TextRecord&& record)>& take) const;

  std::vector<TextRecord> read_all() const;

  /// Empty for records in memory.
  const std::vector<std::string>& files() const;

  /// The path, for messages.
  const std::string& name() const;

  /// Equal for equal content and options, wherever the files lie. Reads all of them.
  std::uint64_t fingerprint() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Whether this build can read Parquet and Arrow files here, and if not, why.
struct ArrowSupport {
  bool available = false;
  std::string reason;
};
ArrowSupport arrow_support();

}  // namespace lockstep
