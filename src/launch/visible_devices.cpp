#include "launch/visible_devices.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <sstream>

#include "core/parse_integer.h"

namespace lockstep {
namespace {

std::string without_blanks(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// As strtoul reads it: "+1" and "1gpu" are 1.
std::optional<std::size_t> find_by_number(const std::vector<Gpu>& all, const std::string& entry) {
  const std::string digits = entry.substr(entry.starts_with("+") ? 1 : 0);
  const auto end = std::find_if(digits.begin(), digits.end(),
                                [](unsigned char letter) { return std::isdigit(letter) == 0; });
  const auto number = parse_integer<std::size_t>(std::string(digits.begin(), end));
  return number && *number < all.size() ? number : std::nullopt;
}

std::optional<std::size_t> find_by_uuid(const std::vector<Gpu>& all, const std::string& entry) {
  std::optional<std::size_t> found;
  for (std::size_t index = 0; index < all.size(); ++index) {
    if (all[index].uuid.starts_with(entry)) {
      if (found) {
        return std::nullopt;  // it fits two
      }
      found = index;
    }
  }
  return found;
}

std::optional<std::size_t> find_by_mig_uuid(const std::vector<Gpu>& all, const std::string& entry) {
  for (std::size_t index = 0; index < all.size(); ++index) {
    const auto& parts = all[index].mig_uuids;
    if (std::find(parts.begin(), parts.end(), entry) != parts.end()) {
      return index;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<Gpu> visible_devices(const std::vector<Gpu>& all, const std::string& list) {
  const bool uuids = list.starts_with("GPU-");
  const bool parts = list.starts_with("MIG-");
  std::vector<std::size_t> chosen;
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    entry = without_blanks(entry);
    if (uuids && !entry.starts_with("GPU-")) {
      break;  // one list holds one kind
    }
    const auto index = parts   ? find_by_mig_uuid(all, entry)
                       : uuids ? find_by_uuid(all, entry)
                               : find_by_number(all, entry);
    if (!index) {
      break;
    }
    if (std::find(chosen.begin(), chosen.end(), *index) != chosen.end()) {
      return {};
    }
    chosen.push_back(*index);
    if (parts) {
      break;
    }
  }
  std::vector<Gpu> visible;
  for (const std::size_t index : chosen) {
    visible.push_back(all[index]);
  }
  return visible;
}

}  // namespace lockstep
