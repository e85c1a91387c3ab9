#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// The text without escape sequences and control characters, so that a worker's line can be shown
/// anywhere without moving the cursor or changing colours. Tabs become two spaces; bytes that are
/// not UTF-8 become '?'.
std::string without_controls(std::string_view text);

/// What a line that was rewritten with carriage returns shows in the end: the text behind the last
/// one that has text behind it.
std::string_view final_state(std::string_view line);

/// At most `bytes` bytes of the text, cut between characters; if cut, it ends in "...".
std::string clipped(std::string_view text, std::size_t bytes);

}  // namespace lockstep
