#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// Bytes as etcd's JSON gateway writes them: the standard alphabet, with padding.
std::string to_base64(std::string_view bytes);

/// std::nullopt for everything that to_base64() could not have made.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace lockstep
