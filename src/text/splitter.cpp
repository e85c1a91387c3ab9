#include "text/splitter.h"

#include <utility>

#include "text/gpt2_scanner.h"
#include "text/unicode_class.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

using Pieces = std::vector<std::string_view>;

// Takes matches from left to right, and gives them and what is between them.
class MatchCutter {
 public:
  MatchCutter(std::string_view text, const SplitStage& what, Pieces& out)
      : text_(text), what_(what), out_(out) {}

  void match(std::string_view found) {
    const auto begin = static_cast<std::size_t>(found.data() - text_.data());
    give(text_.substr(done_, begin - done_), false);
    give(found, true);
    done_ = begin + found.size();
  }

  void finish() { give(text_.substr(done_), false); }

 private:
  void give(std::string_view piece, bool matched) {
    if (piece.empty() || (what_.remove && matched != what_.invert)) return;
    out_.push_back(piece);
  }

  std::string_view text_;
  const SplitStage& what_;
  Pieces& out_;
  std::size_t done_ = 0;
};

void split_at_literal(std::string_view text, const std::string& literal, MatchCutter& cutter) {
  for (std::size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    cutter.match(text.substr(at, literal.size()));
  }
}

void split_digits(std::string_view text, bool each, MatchCutter& cutter) {
  const auto* const begin = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = begin + text.size();
  std::size_t run = 0;  // bytes of numbers just before `at`
  for (const auto* at = begin; at != end;) {
    Utf8Char next = decode_utf8(at, end);
    const bool number = next.bytes != 0 && CharClasses::get().of(next.code) == CharClass::number;
    if (next.bytes == 0) next.bytes = 1;
    at += next.bytes;
    const auto place = static_cast<std::size_t>(at - begin);
    if (number) run += next.bytes;
    if (number && each) cutter.match(text.substr(place - next.bytes, std::exchange(run, 0)));
    if (!number && run > 0) {
      cutter.match(text.substr(place - next.bytes - run, run));
      run = 0;
    }
  }
  if (run > 0) cutter.match(text.substr(text.size() - run));
}

}  // namespace

Splitter::Splitter(std::vector<SplitStage> stages) {
  for (SplitStage& stage : stages) {
    Stage made{std::move(stage), std::nullopt};
    if (made.what.kind == SplitStage::Kind::pattern) made.regex.emplace(made.what.text);
    stages_.push_back(std::move(made));
  }
}

bool Splitter::is_gpt2() const {
  return stages_.size() == 1 && stages_[0].what.kind == SplitStage::Kind::gpt2;
}

void Splitter::apply(const Stage& stage, std::string_view text, Pieces& out, Copies& copies) {
  MatchCutter cutter(text, stage.what, out);
  switch (stage.what.kind) {
    case SplitStage::Kind::gpt2:
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = end_of_gpt2_piece(text, begin);
        out.push_back(text.substr(begin, end - begin));
        begin = end;
      }
      return;
    case SplitStage::Kind::prefix_space:
      out.push_back(text.starts_with(' ') ? text : copies.emplace_back(" ").append(text));
      return;
    case SplitStage::Kind::pattern:
      stage.regex->for_each_match(text, [&](std::string_view found) { cutter.match(found); });
      break;
    case SplitStage::Kind::literal:
      split_at_literal(text, stage.what.text, cutter);
      break;
    case SplitStage::Kind::digits:
      split_digits(text, stage.what.each_digit, cutter);
      break;
  }
  cutter.finish();
}

std::vector<std::string_view> Splitter::split(std::string_view text, Copies& copies) const {
  Pieces pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const Stage& stage : stages_) {
    Pieces next;
    next.reserve(pieces.size());
    for (const std::string_view piece : pieces) apply(stage, piece, next, copies);
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace lockstep
