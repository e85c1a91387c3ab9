#include "vocabulary.h"

#include <filesystem>
#include <string_view>

#include "text/utf8.h"

namespace translate {
namespace {

// The first stands for what is unknown; the others are kPad, kStart and kEnd.
const std::vector<std::string> kMarks = {"[UNK]", "[PAD]", "[SOS]", "[EOS]"};

// A mark that stands in a sentence is text.
constexpr lockstep::EncodeOptions kAsText = {.add_special_tokens = false,
                                             .split_special_tokens = true};

bool has_words(const Options& options) {
  return options.tokenizer == "word";
}

// As the tutorial calls it; byte pairs are a folder.
std::string saved_at(const std::string& directory, const std::string& language, bool words) {
  return directory + "/tokenizer_" + language + (words ? ".json" : "");
}

std::string repaired(std::string_view text) {
  std::string valid;
  while (true) {
    const std::size_t good = lockstep::valid_utf8_prefix(text);
    valid += text.substr(0, good);
    if (good == text.size()) return valid;
    valid += "\xEF\xBF\xBD";
    text.remove_prefix(good + 1);
  }
}

}  // namespace

Vocabulary Vocabulary::learn(const std::vector<std::string>& sentences, const Options& options) {
  if (has_words(options)) {
    return Vocabulary(
        lockstep::WordTokenizer::train(sentences, {.min_frequency = options.min_frequency,
                                                   .vocab_size = options.vocab_size,
                                                   .special_tokens = kMarks}));
  }
  const std::vector<std::string_view> views(sentences.begin(), sentences.end());
  return Vocabulary(lockstep::train_tokenizer(views, {.vocab_size = options.vocab_size,
                                                      .min_frequency = options.min_frequency,
                                                      .special_tokens = kMarks}));
}

Vocabulary Vocabulary::load(const std::string& directory, const std::string& language,
                            const Options& options) {
  const std::string path = saved_at(directory, language, has_words(options));
  if (has_words(options)) return Vocabulary(lockstep::WordTokenizer::load(path));
  return Vocabulary(lockstep::Tokenizer::load(path));
}

bool Vocabulary::is_saved(const std::string& directory, const std::string& language,
                          const Options& options) {
  return std::filesystem::exists(saved_at(directory, language, has_words(options)));
}

void Vocabulary::save(const std::string& directory, const std::string& language) const {
  const bool words = std::holds_alternative<lockstep::WordTokenizer>(kind_);
  std::visit([&](const auto& kind) { kind.save(saved_at(directory, language, words)); }, kind_);
}

std::vector<std::int32_t> Vocabulary::encode(const std::string& sentence) const {
  return std::visit([&](const auto& kind) { return kind.encode(sentence, kAsText); }, kind_);
}

std::string Vocabulary::decode(const std::vector<std::int32_t>& tokens) const {
  return repaired(std::visit(
      [&](const auto& kind) { return kind.decode(tokens, {.skip_special_tokens = true}); }, kind_));
}

std::string on_one_line(std::string text) {
  for (char& byte : text) {
    if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f) byte = ' ';
  }
  return text;
}

std::int64_t Vocabulary::size() const {
  return std::visit([](const auto& kind) { return kind.size(); }, kind_);
}

}  // namespace translate
