// A language pair that is made by rules.
#include <array>
#include <span>
#include <string_view>
#include <unordered_set>

#include "lockstep/sentence_pairs.h"
#include "text/split_mix.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestMadeSentence = 15;  // words and marks, in either language

// The last letter of nouns and adjectives tells the class of a noun.
constexpr std::string_view kBeing = "o", kThing = "a", kPlace = "e";

struct MadeNoun {
  std::string_view one, many, stem;
};

constexpr std::array<MadeNoun, 10> kBeings = {{{"farmer", "farmers", "agr"},
                                               {"teacher", "teachers", "docen"},
                                               {"child", "children", "infan"},
                                               {"dog", "dogs", "hund"},
                                               {"cat", "cats", "mink"},
                                               {"horse", "horses", "ceval"},
                                               {"bird", "birds", "avi"},
                                               {"king", "kings", "reg"},
                                               {"doctor", "doctors", "medik"},
                                               {"friend", "friends", "amik"}}};
constexpr std::array<MadeNoun, 10> kThings = {{{"lamp", "lamps", "lum"},
                                               {"book", "books", "libr"},
                                               {"apple", "apples", "pom"},
                                               {"hat", "hats", "capel"},
                                               {"letter", "letters", "skrib"},
                                               {"bottle", "bottles", "flask"},
                                               {"knife", "knives", "tranc"},
                                               {"table", "tables", "tabul"},
                                               {"box", "boxes", "kest"},
                                               {"ring", "rings", "anel"}}};
constexpr std::array<MadeNoun, 6> kPlaces = {{{"garden", "gardens", "jard"},
                                              {"river", "rivers", "flum"},
                                              {"school", "schools", "lern"},
                                              {"house", "houses", "dom"},
                                              {"forest", "forests", "arb"},
                                              {"city", "cities", "urb"}}};

struct MadeWord {
  std::string_view source, target;
};

constexpr std::array<MadeWord, 12> kAdjectives = {{{"old", "sen"},
                                                   {"young", "jun"},
                                                   {"red", "ruj"},
                                                   {"black", "karb"},
                                                   {"white", "blank"},
                                                   {"big", "gran"},
                                                   {"small", "min"},
                                                   {"good", "bon"},
                                                   {"new", "nov"},
                                                   {"green", "verd"},
                                                   {"strange", "fremd"},
                                                   {"happy", "gaj"}}};
constexpr std::array<MadeWord, 4> kPrepositions = {
    {{"in", "en"}, {"near", "apud"}, {"behind", "post"}, {"before", "ante"}}};
constexpr std::array<MadeWord, 7> kWeekdays = {{{"monday", "lunadi"},
                                                {"tuesday", "mardi"},
                                                {"wednesday", "merkudi"},
                                                {"thursday", "joodi"},
                                                {"friday", "vendi"},
                                                {"saturday", "sabadi"},
                                                {"sunday", "soldi"}}};
constexpr std::array<MadeWord, 12> kMonths = {{{"january", "prunal"},
                                               {"february", "nival"},
                                               {"march", "vental"},
                                               {"april", "semal"},
                                               {"may", "floral"},
                                               {"june", "fenal"},
                                               {"july", "solal"},
                                               {"august", "grenal"},
                                               {"september", "frukal"},
                                               {"october", "vinal"},
                                               {"november", "brumal"},
                                               {"december", "frigal"}}};

constexpr std::array<int, 12> kDaysOfMonths = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

struct MadeVerb {
  std::string_view plain, third, past, stem;  // see, sees, saw
};

constexpr std::array<MadeVerb, 10> kVerbs = {{{"see", "sees", "saw", "vid"},
                                              {"buy", "buys", "bought", "komp"},
                                              {"sell", "sells", "sold", "vent"},
                                              {"find", "finds", "found", "trov"},
                                              {"carry", "carries", "carried", "tir"},
                                              {"lose", "loses", "lost", "perd"},
                                              {"want", "wants", "wanted", "vol"},
                                              {"like", "likes", "liked", "plac"},
                                              {"need", "needs", "needed", "bezon"},
                                              {"paint", "paints", "painted", "pint"}}};

enum class Tense { present, past, future };

constexpr std::array<std::string_view, 19> kEnglishToNineteen = {
    "one",     "two",     "three",     "four",     "five",    "six",      "seven",
    "eight",   "nine",    "ten",       "eleven",   "twelve",  "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array<std::string_view, 8> kEnglishTens = {"twenty", "thirty",  "forty",  "fifty",
                                                          "sixty",  "seventy", "eighty", "ninety"};
constexpr std::array<std::string_view, 20> kEnglishOrdinals = {
    "first",     "second",    "third",       "fourth",     "fifth",      "sixth",      "seventh",
    "eighth",    "ninth",     "tenth",       "eleventh",   "twelfth",    "thirteenth", "fourteenth",
    "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth"};
constexpr std::array<std::string_view, 19> kMadeToNineteen = {
    "un",  "du",  "tri",  "kvar", "kvin", "ses",  "sep",   "ok",    "nau",   "dek",
    "onz", "doz", "trez", "forz", "kinz", "seiz", "disep", "disok", "disnau"};

std::size_t index_of(int number) {
  return static_cast<std::size_t>(number);
}

void append_words(std::string& text, std::string_view words) {
  if (words.empty()) return;
  if (!text.empty()) text += ' ';
  text += words;
}

template <typename... Parts>
std::string phrase(const Parts&... parts) {
  std::string text;
  (append_words(text, parts), ...);
  return text;
}

std::string joined(std::string_view left, std::string_view right) {
  return std::string(left).append(right);
}

std::size_t words_in(std::string_view text) {
  std::size_t words = 1;
  for (const char letter : text) words += letter == ' ' ? 1 : 0;
  return words;
}

// From 1 to 999, without "and".
std::string english_number(int number) {
  std::string text;
  if (number >= 100) text = phrase(kEnglishToNineteen[index_of(number / 100 - 1)], "hundred");
  const int rest = number % 100;
  if (rest >= 20) append_words(text, kEnglishTens[index_of(rest / 10 - 2)]);
  const int units = rest >= 20 ? rest % 10 : rest;
  if (units > 0) append_words(text, kEnglishToNineteen[index_of(units - 1)]);
  return text;
}

// From 1 to 31.
std::string english_ordinal(int number) {
  if (number <= 20) return std::string(kEnglishOrdinals[index_of(number - 1)]);
  if (number == 30) return "thirtieth";
  return phrase(kEnglishTens[index_of(number / 10 - 2)],
                kEnglishOrdinals[index_of(number % 10 - 1)]);
}

// The other way of counting: 357 is 17 and 2 twenties and 3 hundreds, "disep e du vig e tri sent".
std::string made_number(int number) {
  std::string text;
  const auto add = [&text](std::string_view words) {
    if (!text.empty()) text += " e";
    append_words(text, words);
  };
  const int units = number % 100 % 20;
  const int twenties = number % 100 / 20;
  if (units > 0) add(kMadeToNineteen[index_of(units - 1)]);
  if (twenties > 0) add(phrase(kMadeToNineteen[index_of(twenties - 1)], "vig"));
  if (number >= 100) add(phrase(kMadeToNineteen[index_of(number / 100 - 1)], "sent"));
  return text;
}

// Part of a sentence in both languages.
struct BothPhrases {
  std::string source, target;
  bool many = false;
};

class PairMaker {
 public:
  explicit PairMaker(std::uint64_t seed) : numbers_(seed) {}

  SentencePair next() {
    while (true) {
      const int kind = numbers_.between(0, 9);
      SentencePair pair = kind < 6 ? event() : kind < 8 ? price() : day();
      if (words_in(pair.source) > kLongestMadeSentence) continue;
      if (words_in(pair.target) > kLongestMadeSentence) continue;
      if (seen_.insert(pair.source).second) return pair;
    }
  }

 private:
  template <typename Value, std::size_t size>
  const Value& any(const std::array<Value, size>& values) {
    return values[index_of(numbers_.between(0, static_cast<int>(size) - 1))];
  }

  bool in_hundred(int chances) { return numbers_.between(0, 99) < chances; }

  // "these three small red lamps": "luma" in the plural, then all that stood before it, mirrored.
  template <std::size_t size>
  BothPhrases noun_phrase(const std::array<MadeNoun, size>& nouns, std::string_view letter,
                          bool may_be_counted) {
    const MadeNoun& noun = any(nouns);
    const bool many = in_hundred(40);
    const int count = many && may_be_counted && in_hundred(50) ? numbers_.between(2, 99) : 0;
    const std::string ending = many ? joined(letter, "i") : std::string(letter);
    std::string source(many ? noun.many : noun.one);
    std::string target = joined(noun.stem, ending);
    const int adjectives = numbers_.between(0, 9) / 4;  // none, one, or rarely two
    const MadeWord* last = nullptr;
    for (int i = 0; i < adjectives; ++i) {
      const MadeWord& adjective = any(kAdjectives);
      if (&adjective == last) continue;
      last = &adjective;
      source = phrase(adjective.source, source);
      append_words(target, joined(adjective.target, ending));
    }
    if (count > 0) {
      source = phrase(english_number(count), source);
      append_words(target, made_number(count));
    }
    const MadeWord before = determiner(many, count > 0);
    const bool vowel = std::string_view("aeiou").find(source.front()) != std::string_view::npos;
    source = phrase(before.source == "a" && vowel ? "an" : before.source, source);
    return {source, phrase(target, before.target), many};
  }

  MadeWord determiner(bool many, bool counted) {
    const int kind = numbers_.between(0, 3);
    if (kind == 0) return {many ? "these" : "this", "ti"};
    if (kind == 1) return {"my", "mia"};
    if (kind == 2 && counted) return {"", ""};
    if (kind == 2) return {many ? "some" : "a", many ? "kel" : ""};
    return {"the", "la"};
  }

  // A day with its month: "the twenty third of may", "floral tri e un vig".
  BothPhrases date() {
    const MadeWord& month = any(kMonths);
    const int days = kDaysOfMonths[static_cast<std::size_t>(&month - kMonths.data())];
    const int day = numbers_.between(1, days);
    return {phrase("the", english_ordinal(day), "of", month.source),
            phrase(month.target, made_number(day))};
  }

  BothPhrases time_of(Tense tense) {
    if (in_hundred(40)) {
      const MadeWord& weekday = any(kWeekdays);
      if (in_hundred(50)) return {phrase("on", weekday.source), phrase(weekday.target, "sur")};
      const BothPhrases date = this->date();
      return {phrase("on", date.source), phrase(date.target, "sur")};
    }
    if (tense == Tense::past) return {"yesterday", "jer"};
    if (tense == Tense::future) return {"tomorrow", "krai"};
    return {"today", "hodi"};
  }

  // Somebody does something to something: the verb goes to the end, the time to just before it.
  SentencePair event() {
    const auto tense = static_cast<Tense>(numbers_.between(0, 2));
    const BothPhrases subject = noun_phrase(kBeings, kBeing, true);
    const BothPhrases object =
        in_hundred(70) ? noun_phrase(kThings, kThing, true) : noun_phrase(kBeings, kBeing, true);
    BothPhrases place, time;
    if (in_hundred(35)) {
      const MadeWord& where = any(kPrepositions);
      const BothPhrases there = noun_phrase(kPlaces, kPlace, false);
      place = {phrase(where.source, there.source), phrase(there.target, where.target)};
    }
    if (in_hundred(35)) time = time_of(tense);
    const MadeVerb& verb = any(kVerbs);
    const int kind = numbers_.between(0, 9);  // mostly statements
    const bool question = kind == 0 || kind == 1;
    const bool denied = kind == 2 || kind == 3;

    const std::string_view helper = tense == Tense::future ? "will"
                                    : tense == Tense::past ? "did"
                                    : subject.many         ? "do"
                                                           : "does";
    const std::string_view form = tense == Tense::past ? verb.past
                                  : subject.many       ? verb.plain
                                                       : verb.third;
    SentencePair pair;
    if (question) {
      pair.source = phrase(helper, subject.source, verb.plain);
    } else if (denied) {
      pair.source = phrase(subject.source, helper, "not", verb.plain);
    } else if (tense == Tense::future) {
      pair.source = phrase(subject.source, helper, verb.plain);
    } else {
      pair.source = phrase(subject.source, form);
    }
    // A time that opens the sentence would read oddly before a question.
    const std::string said = phrase(pair.source, object.source, place.source);
    pair.source = question ? phrase(said, time.source, "?") : phrase(time.source, said, ".");

    constexpr std::array<std::string_view, 3> kEndings = {"as", "is", "os"};
    pair.target =
        phrase(question ? "cu" : "", subject.target, object.target, "na", place.target, time.target,
               denied ? "ne" : "", joined(verb.stem, kEndings[static_cast<std::size_t>(tense)]),
               question ? "?" : ".");
    return pair;
  }

  SentencePair price() {
    const BothPhrases thing = noun_phrase(kThings, kThing, false);
    const int coins = in_hundred(50) ? numbers_.between(2, 99) : numbers_.between(100, 999);
    return {phrase(thing.source, thing.many ? "cost" : "costs", english_number(coins), "coins ."),
            phrase(thing.target, made_number(coins), "monai kustas .")};
  }

  // The year's last two digits come first, and the weekday, which English begins with, last.
  SentencePair day() {
    const MadeWord& weekday = any(kWeekdays);
    const BothPhrases date = this->date();
    const int century = numbers_.between(15, 19);
    const int year = numbers_.between(10, 99);
    const bool past = in_hundred(50);
    return {phrase(past ? "yesterday was" : "today is", weekday.source, date.source,
                   english_number(century), english_number(year), "."),
            phrase(past ? "jer" : "hodi", made_number(year), "jar", made_number(century),
                   date.target, weekday.target, past ? "estis ." : "estas .")};
  }

  SplitMix numbers_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

std::vector<SentencePair> embedded_sentence_pairs(std::size_t count, std::uint64_t seed) {
  PairMaker maker(seed);
  std::vector<SentencePair> pairs;
  for (std::size_t i = 0; i < count; ++i) pairs.push_back(maker.next());
  return pairs;
}

}  // namespace lockstep
