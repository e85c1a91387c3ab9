#pragma once

#include <string>

#include "core/unique_fd.h"

namespace lockstep {

/// Stream sockets with a place in the file system: non-blocking, closed by exec. The path may be as
/// long as any path; the kernel's limit of 107 bytes counts for its last part only.

/// Listens; only this user can connect. A socket that an earlier process left there gives way.
/// Throws SystemError.
UniqueFd listen_at_path(const std::string& path);

/// Connects. Throws SystemError.
UniqueFd connect_to_path(const std::string& path);

}  // namespace lockstep
