#include "text/token_cache_maker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "core/checksum.h"
#include "core/durable_file.h"
#include "core/parse_integer.h"
#include "core/unique_fd.h"
#include "lockstep/error.h"
#include "text/token_cache_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Documents are encoded so many bytes at a time: enough for all threads, little for the memory.
constexpr std::size_t kBytesAtATime = 8 << 20;

BlockLayout layout_of(const TokenCacheOptions& options) {
  return {.seq_length = options.seq_length,
          .overlapping = !options.whole_documents && !options.one_per_block,
          .one_per_block = options.one_per_block};
}

void validate(const Tokenizer& tokenizer, const TokenCacheOptions& options) {
  if (options.directory.empty()) throw InvalidArgument("TokenCache: no directory is given");
  if (options.seq_length < 1 || options.seq_length > (1 << 24)) {
    throw InvalidArgument(
        concat("TokenCache: seq_length is ", options.seq_length, "; it is from 1 to ", 1 << 24));
  }
  if (options.whole_documents && options.one_per_block) {
    throw InvalidArgument("TokenCache: whole_documents and one_per_block exclude each other");
  }
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    throw InvalidArgument(concat("TokenCache: validation_fraction is ", options.validation_fraction,
                                 "; it is from 0 to less than 1"));
  }
  if (options.validation && options.validation_fraction > 0) {
    throw InvalidArgument(concat("TokenCache: validation_fraction is ", options.validation_fraction,
                                 " though documents for validation are given"));
  }
  if (!tokenizer.end_of_text()) {
    throw InvalidArgument(
        "TokenCache: the tokenizer has no end-of-text token (eos_token in tokenizer_config.json, "
        "or "
        "<|endoftext|>), which goes between documents");
  }
}

// The same document is on the same side whatever other documents there are.
bool is_for_validation(const TokenCacheOptions& options, std::int64_t document) {
  if (options.validation_fraction <= 0) return false;
  const std::uint64_t hash = checksum_of(concat(options.seed, ":", document));
  return static_cast<double>(hash >> 11) * 0x1p-53 < options.validation_fraction;
}

// Encodes documents and hands them to their part, in order.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const TokenCacheOptions& options)
      : tokenizer_(tokenizer), options_(options), began_(Clock::now()), reported_(began_) {}

  void add(TextRecord&& record, PartWriter& part) {
    const bool plain = record.output.empty() && record.instruction.empty();
    waiting_.push_back({options_.prompt.prompt_of(record),
                        plain ? std::move(record.text) : std::move(record.output), &part});
    bytes_ += waiting_.back().prompt.size() + waiting_.back().answer.size();
    if (bytes_ >= kBytesAtATime) encode_waiting();
  }

  void encode_waiting() {
    std::vector<std::string_view> texts;
    for (const Document& document : waiting_) {
      texts.push_back(document.prompt);
      texts.push_back(document.answer);
    }
    const auto ids = tokenizer_.encode_batch(
        texts, {.encode = {.add_special_tokens = false}, .threads = options_.threads});
    const std::uint32_t prompt_bit = options_.answers_only ? kNoLossBit : 0;
    std::vector<std::uint32_t> tokens;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      tokens.clear();
      for (const std::int32_t id : ids[2 * i]) {
        tokens.push_back(static_cast<std::uint32_t>(id) | prompt_bit);
      }
      tokens.insert(tokens.end(), ids[2 * i + 1].begin(), ids[2 * i + 1].end());
      tokens.push_back(static_cast<std::uint32_t>(*tokenizer_.end_of_text()));
      waiting_[i].part->add_document(tokens);
      tokens_ += static_cast<std::int64_t>(tokens.size());
    }
    documents_ += static_cast<std::int64_t>(waiting_.size());
    waiting_.clear();
    bytes_ = 0;
    report();
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Document {
    std::string prompt;
    std::string answer;
    PartWriter* part;
  };

  void report() {
    const auto now = Clock::now();
    if (!options_.progress || now - reported_ < std::chrono::seconds(1)) return;
    reported_ = now;
    options_.progress({.documents = documents_,
                       .tokens = tokens_,
                       .seconds = std::chrono::duration<double>(now - began_).count()});
  }

  const Tokenizer& tokenizer_;
  const TokenCacheOptions& options_;
  std::vector<Document> waiting_;
  std::size_t bytes_ = 0;
  std::int64_t documents_ = 0;
  std::int64_t tokens_ = 0;
  Clock::time_point began_, reported_;
};

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// What processes of this machine left that died while they made a cache.
void remove_leftovers(const fs::path& directory) {
  const std::string prefix = leftover_prefix();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string rest = name.substr(prefix.size());
    const auto pid = parse_integer<pid_t>(rest.substr(0, rest.find('-')));
    if (pid && *pid > 0 && ::kill(*pid, 0) != 0 && errno == ESRCH) {
      std::error_code failed;
      fs::remove_all(entry.path(), failed);
    }
  }
}

// A folder under a name that no reader looks for; removed unless it was renamed.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& directory) {
    std::string pattern = (directory / concat(leftover_prefix(), ::getpid(), "-XXXXXX")).string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw_errno(concat("cannot make a folder in '", directory.string(), "'"));
    }
    path_ = pattern;
    ::chmod(path_.c_str(), 0755);
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const fs::path& path() const { return path_; }

  void rename_to(const fs::path& target) {
    sync(path_);
    if (std::rename(path_.c_str(), target.c_str()) == 0) {
      path_.clear();
      sync(target.parent_path());
    } else if (errno != ENOTEMPTY && errno != EEXIST) {
      throw_errno(concat("cannot rename '", path_.string(), "' to '", target.string(), "'"));
    }
  }

 private:
  static void sync(const fs::path& folder) {
    const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd) ::fsync(fd.get());  // some file systems cannot
  }

  fs::path path_;
};

}  // namespace

std::string leftover_prefix() {
  return concat(".making-", host_name(), "-");
}

std::string cache_name(const Tokenizer& tokenizer, const TextSource& source,
                       const TokenCacheOptions& options) {
  validate(tokenizer, options);
  std::string key = concat("1 ", tokenizer.fingerprint(), " ", *tokenizer.end_of_text(), " ",
                           source.fingerprint(), " ", options.seq_length, " ", options.answers_only,
                           options.whole_documents, options.one_per_block, " ",
                           options.prompt.with_input.size(), ":", options.prompt.with_input,
                           options.prompt.without_input.size(), ":", options.prompt.without_input);
  if (options.validation) key += concat(" given ", options.validation->fingerprint());
  if (options.validation_fraction > 0) {
    key += concat(" ", std::hexfloat, options.validation_fraction, " ", options.seed);
  }
  return concat(kCachePrefix, checksum_text(checksum_of(key)));
}

void make_cache(const Tokenizer& tokenizer, const TextSource& source,
                const TokenCacheOptions& options, const std::string& name) {
  const fs::path directory = options.directory;
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) throw SystemError(concat("cannot make '", directory.string(), "': ", error.message()));
  remove_leftovers(directory);
  NewFolder folder(directory);
  CacheDescription description{.layout = layout_of(options), .source = source.name()};
  const std::int32_t padding = *tokenizer.end_of_text();
  PartWriter train((folder.path() / kTrainPart).string(), description.layout, padding);
  PartWriter validation((folder.path() / kValidationPart).string(), description.layout, padding);
  Encoder encoder(tokenizer, options);
  std::int64_t document = 0;
  source.for_each([&](TextRecord&& record) {
    encoder.add(std::move(record), is_for_validation(options, document++) ? validation : train);
  });
  if (options.validation) {
    options.validation->for_each(
        [&](TextRecord&& record) { encoder.add(std::move(record), validation); });
  }
  encoder.encode_waiting();
  description.train = train.finish();
  description.validation = validation.finish();
  const bool wanted = options.validation_fraction > 0;
  if (description.train.documents == 0 || (wanted && description.validation.documents == 0)) {
    throw InvalidArgument(concat("the data set '", source.name(), "' has ", document,
                                 " documents, too few to set ", options.validation_fraction,
                                 " of them aside for validation"));
  }
  write_durably((folder.path() / kCacheDescription).string(), description_text(description));
  folder.rename_to(directory / name);
}

}  // namespace lockstep
