#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Puts `content` into the file at `path`, which then has either its old content or all of the new,
/// also after a power cut: written beside it under a temporary name, synced, renamed. Throws
/// SystemError, and leaves the old file alone, when the system refuses.
void write_durably(const std::string& path, std::string_view content);

/// The same without waiting for the disk: readers see the old or the new content, whole, but a
/// power cut may lose both.
void replace_file(const std::string& path, std::string_view content);

}  // namespace lockstep
