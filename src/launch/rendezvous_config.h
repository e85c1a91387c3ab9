#pragma once

#include <map>
#include <string>
#include <string_view>

#include "launch/option_values.h"
#include "launch/options.h"

namespace lockstep {

/// "key=value,key=value" of --rdzv-conf, as a map. Throws InvalidArgument for an empty key or
/// value.
std::map<std::string, std::string> split_rendezvous_conf(const OptionValue& value);

/// What the pairs mean under the backend ("c10d" or "static"). Throws InvalidArgument for a key
/// that the backend does not have (naming those it has) and for a value that the key cannot take.
RendezvousConfig read_rendezvous_conf(const std::map<std::string, std::string>& pairs,
                                      std::string_view backend, std::string_view source);

}  // namespace lockstep
