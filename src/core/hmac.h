#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::size_t kHmacBytes = 32;

/// HMAC-SHA256 of `data`: 32 raw bytes.
///
/// OpenSSL computes it. Its library is loaded by the first call and not before: a job on one node
/// needs none of it, and linked it would double the launcher's start time (1.2 to 2.2 ms) and add
/// 1.5 MB. Throws SystemError, naming the package, where it is not installed. Thread-safe.
std::string hmac_sha256(std::string_view key, std::string_view data);

/// Whether two strings are the same, in a time that depends on their lengths alone.
bool equal_in_constant_time(std::string_view one, std::string_view other);

/// Bytes that nobody can guess, from the kernel. Throws SystemError.
std::string random_bytes(std::size_t count);

/// Two lower-case digits a byte.
std::string to_hex(std::string_view bytes);

}  // namespace lockstep
