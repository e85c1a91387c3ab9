#pragma once

#include <optional>
#include <string>

#include "lockstep/environment.h"

namespace lockstep {

inline constexpr std::size_t kMinSecretBytes = 16;

/// A secret for a new job: 64 hexadecimal digits, from 32 random bytes.
std::string make_secret();

/// What --secret-file names: its contents without white space at the end. Throws InvalidArgument,
/// with the command that mends it, unless it is a regular file of this user that nobody else may
/// read or write, with at least kMinSecretBytes.
std::string read_secret_file(const std::string& path);

/// The same for what may be shorter, such as a password.
std::string read_private_file(const std::string& path);

/// The secret that this node was given: by --secret-file, else LOCKSTEP_SECRET_FILE, else
/// LOCKSTEP_SECRET; std::nullopt if by none. Throws InvalidArgument for one that cannot be used;
/// naming it, not showing it.
std::optional<std::string> given_secret(const std::optional<std::string>& secret_file,
                                        const Environment& environment);

/// How the user said that nodes trust each other.
struct SecretOptions {
  std::optional<std::string> file;  // --secret-file
  bool insecure = false;            // --insecure
};

/// The secret that nodes share which were started each by itself; empty with --insecure. `who`
/// needs it: "a job on several nodes". Throws InvalidArgument, with the cure, if there is none.
std::string shared_secret(const SecretOptions& options, const Environment& environment,
                          const std::string& who);

/// The same where this process hands it to the others: a new one if none was given.
std::string given_or_new_secret(const SecretOptions& options, const Environment& environment);

/// Whatever holds a secret in this process stays out of core dumps, and out of the reach of other
/// processes of the same user (ptrace, /proc/PID/mem), the workers among them. Children are as they
/// would be anyway once they have called exec: core dumps of workers stay possible.
void guard_secret();

}  // namespace lockstep
