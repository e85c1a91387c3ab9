#include "lockstep/embedded_instructions.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "core/checksum.h"
#include "lockstep/error.h"
#include "text/split_mix.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kHeldOutOneIn = 8;
// A task whose questions are nearly all of one kind would otherwise be asked for ever.
constexpr int kMostTries = 100000;
constexpr int kTriesForANewQuestion = 200;

using Numbers = SplitMix;

struct Exercise {
  std::string question;
  std::string answer;
};

using Options = EmbeddedInstructionsOptions;

std::string word(Numbers& numbers, const Options& options) {
  std::string letters;
  const int length = numbers.between(options.shortest_word, options.longest_word);
  for (int i = 0; i < length; ++i) {
    letters.push_back(static_cast<char>('a' + numbers.between(0, options.letters - 1)));
  }
  return letters;
}

Exercise copy(Numbers& numbers, const Options& options) {
  const std::string letters = word(numbers, options);
  return {letters, letters};
}

Exercise reverse(Numbers& numbers, const Options& options) {
  const std::string letters = word(numbers, options);
  return {letters, {letters.rbegin(), letters.rend()}};
}

Exercise sort(Numbers& numbers, const Options& options) {
  const std::string letters = word(numbers, options);
  std::string sorted = letters;
  std::sort(sorted.begin(), sorted.end());
  return {letters, sorted};
}

Exercise add(Numbers& numbers, const Options& options) {
  const int first = numbers.between(0, options.largest_number);
  const int second = numbers.between(0, options.largest_number);
  return {concat(first, " ", second), concat(first + second)};
}

Exercise next_in_series(Numbers& numbers, const Options& options) {
  const int start = numbers.between(0, options.largest_start);
  const int difference = numbers.between(1, options.largest_difference);
  return {concat(start, " ", start + difference, " ", start + 2 * difference),
          concat(start + 3 * difference)};
}

// Nouns whose plural follows the rules of spelling.
constexpr std::array<std::string_view, 160> kNouns = {
    "apple",  "arm",     "army",   "baby",   "bag",    "ball",    "bank",    "bed",     "bee",
    "bell",   "bench",   "berry",  "bird",   "boat",   "body",    "book",    "boss",    "bottle",
    "box",    "boy",     "branch", "brush",  "bus",    "bush",    "button",  "cake",    "camp",
    "car",    "card",    "cat",    "chair",  "cherry", "church",  "city",    "class",   "clock",
    "coach",  "coat",    "coin",   "copy",   "corner", "country", "cow",     "cross",   "cup",
    "day",    "desk",    "diary",  "dish",   "doctor", "dog",     "door",    "dress",   "duck",
    "duty",   "eagle",   "ear",    "egg",    "enemy",  "eye",     "factory", "fairy",   "family",
    "farm",   "field",   "finger", "flag",   "flash",  "flower",  "fox",     "friend",  "game",
    "garden", "gas",     "girl",   "glass",  "hand",   "hat",     "hill",    "hobby",   "horse",
    "house",  "inch",    "island", "jacket", "judge",  "key",     "king",    "kiss",    "kitchen",
    "lady",   "lake",    "lamp",   "leg",    "lens",   "letter",  "lily",    "lunch",   "map",
    "market", "match",   "monkey", "month",  "moon",   "name",    "nest",    "night",   "nurse",
    "orange", "page",    "paper",  "party",  "path",   "pen",     "penny",   "picture", "plane",
    "plant",  "plate",   "pony",   "porch",  "puppy",  "queen",   "ring",    "river",   "road",
    "room",   "rose",    "ship",   "shirt",  "shoe",   "shop",    "sister",  "sky",     "snake",
    "song",   "spy",     "star",   "stone",  "story",  "street",  "student", "switch",  "table",
    "tax",    "teacher", "ticket", "town",   "toy",    "train",   "tray",    "tree",    "valley",
    "watch",  "wave",    "week",   "window", "wing",   "wish",    "worm"};

std::string plural_of(std::string_view noun) {
  const auto ends = [noun](std::string_view ending) { return noun.ends_with(ending); };
  if (ends("s") || ends("x") || ends("ch") || ends("sh")) return std::string(noun) + "es";
  const bool vowel = noun.size() > 1 && std::string_view("aeiou").find(noun[noun.size() - 2]) !=
                                            std::string_view::npos;
  if (ends("y") && !vowel) return std::string(noun.substr(0, noun.size() - 1)) + "ies";
  return std::string(noun) + "s";
}

Exercise plural(Numbers& numbers, const Options&) {
  const std::string_view noun =
      kNouns[static_cast<std::size_t>(numbers.between(0, static_cast<int>(kNouns.size()) - 1))];
  return {std::string(noun), plural_of(noun)};
}

struct Task {
  std::string name;
  Exercise (*make)(Numbers&, const Options&);
};

const std::vector<Task>& all_tasks() {
  static const std::vector<Task> tasks = {{"copy", copy},           {"reverse", reverse},
                                          {"sort", sort},           {"add", add},
                                          {"next", next_in_series}, {"plural", plural}};
  return tasks;
}

std::vector<Task> chosen_tasks(const std::vector<std::string>& names) {
  if (names.empty()) return all_tasks();
  std::vector<Task> tasks;
  for (const std::string& name : names) {
    const auto found = std::find_if(all_tasks().begin(), all_tasks().end(),
                                    [&](const Task& task) { return task.name == name; });
    if (found == all_tasks().end()) {
      throw InvalidArgument(concat("embedded_instructions: there is no task '", name,
                                   "'; there are copy, reverse, sort, add, next and plural"));
    }
    tasks.push_back(*found);
  }
  return tasks;
}

void need(bool holds, const char* option, std::int64_t value, const char* rule) {
  if (!holds) {
    throw InvalidArgument(
        concat("embedded_instructions: ", option, " is ", value, "; it must be ", rule));
  }
}

void validate(const Options& options) {
  need(options.train_records >= 0, "train_records", options.train_records, "at least 0");
  need(options.held_out_records >= 0, "held_out_records", options.held_out_records, "at least 0");
  need(options.letters >= 2 && options.letters <= 26, "letters", options.letters, "from 2 to 26");
  need(options.shortest_word >= 1, "shortest_word", options.shortest_word, "at least 1");
  need(options.longest_word >= options.shortest_word && options.longest_word <= 100, "longest_word",
       options.longest_word, "from shortest_word to 100");
  constexpr int kLargest = 1'000'000;
  need(options.largest_number >= 2 && options.largest_number <= kLargest, "largest_number",
       options.largest_number, "from 2 to 1000000");
  need(options.largest_start >= 2 && options.largest_start <= kLargest, "largest_start",
       options.largest_start, "from 2 to 1000000");
  need(options.largest_difference >= 1 && options.largest_difference <= kLargest,
       "largest_difference", options.largest_difference, "from 1 to 1000000");
}

// Which side a question is on depends on the question alone.
bool is_held_out(const TextRecord& record) {
  return checksum_of(concat(record.instruction, ":", record.input)) % kHeldOutOneIn == 0;
}

std::vector<TextRecord> make(const std::vector<Task>& tasks, const Options& options, bool held_out,
                             std::int64_t count) {
  Numbers numbers(options.seed * 2 + (held_out ? 1 : 0));
  std::vector<TextRecord> records;
  records.reserve(static_cast<std::size_t>(count));
  std::set<std::string> asked;
  int tries = 0;
  while (static_cast<std::int64_t>(records.size()) < count) {
    const Task& task = tasks[records.size() % tasks.size()];
    Exercise exercise = task.make(numbers, options);
    TextRecord record{.instruction = task.name,
                      .input = std::move(exercise.question),
                      .output = std::move(exercise.answer)};
    // Accuracy is measured on held-out questions, so they repeat only where a task has no more.
    const bool wanted =
        !held_out || tries >= kTriesForANewQuestion || !asked.contains(task.name + record.input);
    if (is_held_out(record) == held_out && wanted) {
      if (held_out) asked.insert(task.name + record.input);
      records.push_back(std::move(record));
      tries = 0;
    } else if (++tries == kMostTries) {
      throw InvalidArgument(concat("embedded_instructions: the options leave the task '", task.name,
                                   "' no question to ", held_out ? "hold out" : "train on"));
    }
  }
  return records;
}

}  // namespace

const std::vector<std::string>& embedded_tasks() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Task& task : all_tasks()) list.push_back(task.name);
    return list;
  }();
  return names;
}

EmbeddedInstructions embedded_instructions(const EmbeddedInstructionsOptions& options) {
  validate(options);
  const std::vector<Task> tasks = chosen_tasks(options.tasks);
  return {.train = make(tasks, options, false, options.train_records),
          .held_out = make(tasks, options, true, options.held_out_records)};
}

}  // namespace lockstep
