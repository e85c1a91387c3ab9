#include "control/store_data.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr char kReady = 0, kNotReady = 1;
constexpr char kStopWaiting = 0, kWaitCancelled = 1;

template <typename Integer>
void append_integer(std::string& bytes, Integer value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_text(std::string& bytes, std::string_view text) {
  append_integer<std::uint64_t>(bytes, text.size());
  bytes.append(text);
}

// A reply that is one integer.
template <typename Integer>
void reply_integer(StoreOutcome& outcome, StoreClientId client, Integer value) {
  StoreReply& reply = outcome.replies.emplace_back(StoreReply{.client = client, .bytes = {}});
  append_integer(reply.bytes, value);
}

void reply_text(StoreOutcome& outcome, StoreClientId client, std::string_view text) {
  StoreReply& reply = outcome.replies.emplace_back(StoreReply{.client = client, .bytes = {}});
  append_text(reply.bytes, text);
}

std::int64_t wrapping_sum(std::int64_t one, std::int64_t other) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(one) +
                                   static_cast<std::uint64_t>(other));
}

}  // namespace

StoreOutcome StoreData::execute(StoreClientId client, const StoreRequest& request) {
  StoreOutcome outcome;
  if (!has_room_for(request)) {
    outcome.problem =
        concat(name_of(request.command), " would make the store larger than ", limits_.bytes,
               " bytes; it holds ", bytes(), " and ", values_.size(), " keys");
    return outcome;
  }
  switch (request.command) {
    case StoreCommand::validate:
      break;  // the scanner has checked it
    case StoreCommand::ping:
      reply_integer(outcome, client, static_cast<std::uint32_t>(request.number));
      break;
    case StoreCommand::number_of_keys:
      reply_integer<std::int64_t>(outcome, client, values_.size());
      break;
    case StoreCommand::list_keys:
      list_keys(client, outcome);
      break;
    case StoreCommand::cancel_wait:
      waits_.stop(client);
      reply_integer(outcome, client, kWaitCancelled);
      break;
    case StoreCommand::check:
    case StoreCommand::wait:
    case StoreCommand::multi_get:
    case StoreCommand::multi_set:
      execute_on_list(client, request, outcome);
      break;
    case StoreCommand::queue_push:
    case StoreCommand::queue_pop:
    case StoreCommand::queue_length:
      execute_on_queue(client, request, outcome);
      break;
    default:
      execute_on_key(client, request, outcome);
  }
  return outcome;
}

// Taken as if nothing were overwritten: near the limit it may refuse what would just have fitted,
// but it never has to stop in the middle of a request.
bool StoreData::has_room_for(const StoreRequest& request) const {
  std::size_t copies = 1;
  switch (request.command) {
    case StoreCommand::wait:
    case StoreCommand::barrier:
      copies = 2;  // by key and by client
      break;
    case StoreCommand::set:
    case StoreCommand::compare_set:
    case StoreCommand::add:
    case StoreCommand::append:
    case StoreCommand::multi_set:
    case StoreCommand::queue_push:
      break;
    default:
      return true;
  }
  std::size_t needed = 0;
  for (const std::string_view text : request.texts)
    needed += copies * (text.size() + kStoreEntryBytes);
  return bytes() + needed <= limits_.bytes;
}

void StoreData::execute_on_key(StoreClientId client, const StoreRequest& request,
                               StoreOutcome& outcome) {
  const std::string_view key = request.texts.at(0);
  switch (request.command) {
    case StoreCommand::set:
      return put(key, request.texts.at(1), outcome);
    case StoreCommand::append:
      return append(key, request.texts.at(1), outcome);
    case StoreCommand::compare_set:
      return compare_set(client, request, outcome);
    case StoreCommand::add:
      return add(client, request, outcome);
    case StoreCommand::barrier:
      return barrier(client, request, outcome);
    case StoreCommand::delete_key:
      return erase(client, key, outcome);
    default: {
      // GET of an absent key is answered with an empty value; torch's client waits for it first.
      const std::string* value = find(key);
      return reply_text(outcome, client, value ? std::string_view(*value) : std::string_view());
    }
  }
}

void StoreData::execute_on_list(StoreClientId client, const StoreRequest& request,
                                StoreOutcome& outcome) {
  const auto& texts = request.texts;
  switch (request.command) {
    case StoreCommand::check: {
      const bool all = std::ranges::all_of(texts, [&](auto key) { return present(key); });
      return reply_integer(outcome, client, all ? kReady : kNotReady);
    }
    case StoreCommand::wait:
      return wait_for_all(client, request, outcome);
    case StoreCommand::multi_get:
      return get_all(client, request, outcome);
    default:
      for (std::size_t i = 0; i + 1 < texts.size(); i += 2) put(texts[i], texts[i + 1], outcome);
  }
}

void StoreData::execute_on_queue(StoreClientId client, const StoreRequest& request,
                                 StoreOutcome& outcome) {
  const std::string_view key = request.texts.at(0);
  auto found = queues_.find(key);
  if (request.command == StoreCommand::queue_push) {
    if (found == queues_.end()) {
      found = queues_.try_emplace(std::string(key)).first;
      bytes_ += key.size() + kStoreEntryBytes;
    }
    found->second.emplace_back(request.texts.at(1));
    bytes_ += request.texts.at(1).size() + kStoreEntryBytes;
    for (const StoreClientId free : waits_.element_came(key))
      reply_integer(outcome, free, kStopWaiting);
    return;
  }
  // QUEUE_POP too is answered with the length before it.
  const std::size_t length = found == queues_.end() ? 0 : found->second.size();
  reply_integer<std::int64_t>(outcome, client, length);
  if (request.command != StoreCommand::queue_pop || length == 0) return;
  auto& queue = found->second;
  append_text(outcome.replies.back().bytes, queue.front());
  bytes_ -= queue.front().size() + kStoreEntryBytes;
  queue.pop_front();
  if (queue.empty()) {
    bytes_ -= key.size() + kStoreEntryBytes;
    queues_.erase(found);
  }
}

void StoreData::put(std::string_view key, std::string_view value, StoreOutcome& outcome) {
  std::string* slot = entry(key);
  bytes_ += value.size();
  bytes_ -= slot->size();
  *slot = value;
  wake_all(key, outcome);
}

void StoreData::append(std::string_view key, std::string_view value, StoreOutcome& outcome) {
  entry(key)->append(value);
  bytes_ += value.size();
  wake_all(key, outcome);
}

void StoreData::compare_set(StoreClientId client, const StoreRequest& request,
                            StoreOutcome& outcome) {
  const std::string_view key = request.texts.at(0);
  const std::string_view expected = request.texts.at(1);
  const std::string* value = find(key);
  if (!value && !expected.empty()) {
    return reply_text(outcome, client, expected);  // absent: torch echoes what was expected
  }
  if (!value || *value == expected) {
    put(key, request.texts.at(2), outcome);
    value = find(key);
  }
  reply_text(outcome, client, *value);
}

void StoreData::add(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome) {
  const std::string_view key = request.texts.at(0);
  const auto old = number_at(key);
  if (!old) {
    outcome.problem = concat("ADD to ", key, ", whose value is no number");
    return;
  }
  const std::int64_t sum = wrapping_sum(*old, request.number);
  put(key, std::to_string(sum), outcome);
  reply_integer(outcome, client, sum);
}

void StoreData::barrier(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome) {
  const std::string_view key = request.texts.at(0);
  const auto old = number_at(key);
  if (!old) {
    outcome.problem = concat("BARRIER at ", key, ", whose value is no number");
    return;
  }
  const std::int64_t count = wrapping_sum(*old, 1);
  // Not put(): those who wait for the key go on when the last client has come.
  std::string* slot = entry(key);
  const std::string text = std::to_string(count);
  bytes_ += text.size();
  bytes_ -= slot->size();
  *slot = text;
  waits_.stop(client);
  if (count < request.number) return waits_.await(client, key);
  wake_all(key, outcome);
  reply_integer(outcome, client, kStopWaiting);
}

void StoreData::erase(StoreClientId client, std::string_view key, StoreOutcome& outcome) {
  const auto found = values_.find(key);
  reply_integer<std::int64_t>(outcome, client, found == values_.end() ? 0 : 1);
  if (found == values_.end()) return;
  bytes_ -= found->first.size() + found->second.size() + kStoreEntryBytes;
  values_.erase(found);
}

void StoreData::get_all(StoreClientId client, const StoreRequest& request,
                        StoreOutcome& outcome) const {
  // Measured first: 131,072 times the same large value would be a reply of a terabyte.
  std::size_t size = 0;
  for (const std::string_view key : request.texts) {
    const std::string* value = find(key);
    size += sizeof(std::uint64_t) + (value ? value->size() : 0);
  }
  if (size > limits_.reply_bytes) {
    outcome.problem =
        concat("MULTI_GET asks for ", size, " bytes; the limit is ", limits_.reply_bytes);
    return;
  }
  StoreReply& reply = outcome.replies.emplace_back(StoreReply{.client = client, .bytes = {}});
  reply.bytes.reserve(size);
  for (const std::string_view key : request.texts) {
    const std::string* value = find(key);
    append_text(reply.bytes, value ? std::string_view(*value) : std::string_view());
  }
}

void StoreData::list_keys(StoreClientId client, StoreOutcome& outcome) const {
  std::size_t size = sizeof(std::int64_t);
  for (const auto& [key, value] : values_) size += sizeof(std::uint64_t) + key.size();
  if (size > limits_.reply_bytes) {
    outcome.problem =
        concat("LIST_KEYS asks for ", size, " bytes; the limit is ", limits_.reply_bytes);
    return;
  }
  reply_integer<std::int64_t>(outcome, client, values_.size());
  std::string& bytes = outcome.replies.back().bytes;
  bytes.reserve(size);
  for (const auto& [key, value] : values_) append_text(bytes, key);
}

void StoreData::wait_for_all(StoreClientId client, const StoreRequest& request,
                             StoreOutcome& outcome) {
  waits_.stop(client);
  for (const std::string_view key : request.texts) {
    if (!present(key)) waits_.await(client, key);
  }
  if (!waits_.waiting(client)) reply_integer(outcome, client, kStopWaiting);
}

void StoreData::wake_all(std::string_view key, StoreOutcome& outcome) {
  for (const StoreClientId free : waits_.key_came(key)) reply_integer(outcome, free, kStopWaiting);
}

void StoreData::for_each_key(const std::function<void(const std::string&)>& visit) const {
  for (const auto& [key, value] : values_) visit(key);
}

const std::string* StoreData::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

// For WAIT and CHECK a queue with something in it is there.
bool StoreData::present(std::string_view key) const {
  return find(key) || queues_.contains(key);
}

std::string* StoreData::entry(std::string_view key) {
  auto found = values_.find(key);
  if (found == values_.end()) {
    found = values_.try_emplace(std::string(key)).first;
    bytes_ += key.size() + kStoreEntryBytes;
  }
  return &found->second;
}

// As std::stoll reads it, which torch uses: blanks before the number and anything behind it are
// fine. An absent key counts as 0.
std::optional<std::int64_t> StoreData::number_at(std::string_view key) const {
  const std::string* value = find(key);
  if (!value) return 0;
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(value->c_str(), &end, 10);
  if (end == value->c_str() || errno == ERANGE) return std::nullopt;
  return number;
}

}  // namespace lockstep
