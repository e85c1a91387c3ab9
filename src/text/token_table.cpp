#include "text/token_table.h"

#include <algorithm>
#include <array>

#include "lockstep/error.h"
#include "text/byte_alphabet.h"

namespace lockstep {

TokenTable::TokenTable(const TokenizerSpec& spec) {
  std::int32_t largest = -1;
  for (const auto& [name, id] : spec.vocabulary) largest = std::max(largest, id);
  for (const AddedToken& token : spec.added) largest = std::max(largest, token.id);
  tokens_.resize(static_cast<std::size_t>(largest) + 1);
  ids_.reserve(tokens_.size());
  for (const auto& [name, id] : spec.vocabulary) {
    add(name, id).bytes = bytes_of_name(name).value_or(name);
  }
  for (const AddedToken& added : spec.added) {
    Token& token = add(added.content, added.id);
    token.bytes = added.content;
    token.special = added.special;
  }
  for (const auto* ids : {&spec.before, &spec.after}) {
    for (const std::int32_t id : *ids) {
      if (id > largest || !tokens_[static_cast<std::size_t>(id)].known) {
        throw InvalidArgument(
            concat("the tokenizer's template adds the token ", id, ", which does not exist"));
      }
    }
  }
}

Token& TokenTable::add(const std::string& name, std::int32_t id) {
  const auto [entry, is_new] = ids_.try_emplace(name, id);
  if (!is_new && entry->second != id) {
    throw InvalidArgument(
        concat("the tokenizer gives '", name, "' two ids: ", entry->second, " and ", id));
  }
  Token& token = tokens_[static_cast<std::size_t>(id)];
  if (token.known && token.name != name) {
    throw InvalidArgument(
        concat("the tokenizer gives the id ", id, " to '", token.name, "' and to '", name, "'"));
  }
  token.name = name;
  token.known = true;
  return token;
}

std::optional<std::int32_t> TokenTable::id_of(std::string_view name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

Bpe TokenTable::make_bpe(const TokenizerSpec& spec) const {
  std::int32_t unknown = -1;
  if (spec.unknown) {
    const auto found = id_of(*spec.unknown);
    if (!found) {
      throw InvalidArgument(
          concat("the tokenizer's unk_token '", *spec.unknown, "' is not in its vocabulary"));
    }
    unknown = *found;
  }
  std::array<std::int32_t, 256> byte_ids{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids[byte] =
        id_of(name_of_bytes(std::string(1, static_cast<char>(byte)))).value_or(unknown);
  }
  if (const auto missing = std::count(byte_ids.begin(), byte_ids.end(), -1); missing > 0) {
    throw InvalidArgument(concat("the tokenizer's vocabulary lacks ", missing,
                                 " of the 256 single bytes and has no unk_token for them; train it "
                                 "with the byte-level alphabet as its initial alphabet"));
  }
  std::vector<Bpe::Merge> merges;
  merges.reserve(spec.merges.size());
  for (const auto& [left, right] : spec.merges) {
    const auto need = [&](const std::string& name, const char* role) {
      const auto found = id_of(name);
      if (!found) {
        throw InvalidArgument(concat("the tokenizer's merge ", merges.size() + 1, " has '", name,
                                     "' for its ", role, ", which is not in the vocabulary"));
      }
      return *found;
    };
    merges.push_back({.left = need(left, "left part"),
                      .right = need(right, "right part"),
                      .result = need(left + right, "result")});
  }
  return Bpe(byte_ids, merges);
}

IdsByText TokenTable::ids_by_bytes(const TokenizerSpec& spec) const {
  IdsByText ids;
  for (const auto& [name, id] : spec.vocabulary) {
    ids.emplace(tokens_[static_cast<std::size_t>(id)].bytes, id);
  }
  return ids;
}

}  // namespace lockstep
