#include "launch/secret.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/hmac.h"
#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxSecretBytes = 4096;

std::string without_trailing_space(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

void check_length(const std::string& secret, const std::string& source) {
  if (secret.size() < kMinSecretBytes) {
    throw InvalidArgument(concat(source, " holds ", secret.size(),
                                 " bytes; a secret needs at least ", kMinSecretBytes,
                                 ", for example from: openssl rand -hex 32"));
  }
}

void check_file(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_errno(concat("fstat of ", path));
  if (!S_ISREG(status.st_mode)) {
    throw InvalidArgument(concat("the secret file '", path, "' is not a regular file"));
  }
  if (status.st_uid != ::geteuid()) {
    throw InvalidArgument(concat("the secret file '", path, "' belongs to user ", status.st_uid,
                                 ", not to this one (", ::geteuid(), "); make a copy that does"));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw InvalidArgument(
        concat("the secret file '", path, "' is open to others; close it with: chmod 600 ", path));
  }
}

// Empty with --insecure; std::nullopt where nothing was said.
std::optional<std::string> secret_unless_insecure(const SecretOptions& options,
                                                  const Environment& environment) {
  auto given = given_secret(options.file, environment);
  if (given && options.insecure) {
    throw InvalidArgument(
        "--insecure contradicts the secret that was given: leave one of them out");
  }
  if (options.insecure) return "";
  return given;
}

}  // namespace

std::string make_secret() {
  return to_hex(random_bytes(32));
}

std::string read_private_file(const std::string& path) {
  // Checked through the descriptor, so that what is checked is what is read. Without O_NONBLOCK a
  // pipe would make this wait.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    throw InvalidArgument(
        concat("the secret file '", path, "' cannot be read: ", std::strerror(errno)));
  }
  check_file(file.get(), path);
  std::string contents;
  std::array<char, kMaxSecretBytes> buffer;
  while (contents.size() <= kMaxSecretBytes) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(concat("cannot read ", path));
    if (got == 0) break;
    contents.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (contents.size() > kMaxSecretBytes) {
    throw InvalidArgument(concat("the secret file '", path, "' is longer than ", kMaxSecretBytes,
                                 " bytes; is it the right file?"));
  }
  return without_trailing_space(std::move(contents));
}

std::string read_secret_file(const std::string& path) {
  std::string secret = read_private_file(path);
  check_length(secret, concat("the secret file '", path, "'"));
  return secret;
}

std::optional<std::string> given_secret(const std::optional<std::string>& secret_file,
                                        const Environment& environment) {
  if (secret_file) return read_secret_file(*secret_file);
  if (const auto path = environment.get("LOCKSTEP_SECRET_FILE")) return read_secret_file(*path);
  if (auto secret = environment.get("LOCKSTEP_SECRET")) {
    secret = without_trailing_space(std::move(*secret));
    check_length(*secret, "LOCKSTEP_SECRET");
    return secret;
  }
  return std::nullopt;
}

std::string shared_secret(const SecretOptions& options, const Environment& environment,
                          const std::string& who) {
  auto given = secret_unless_insecure(options, environment);
  if (given) return *std::move(given);
  throw InvalidArgument(
      concat(who,
             " needs a secret that the nodes share: make a file with "
             "`(umask 077; head -c 32 /dev/urandom | base64 > job.secret)`, copy it to every node "
             "and pass --secret-file job.secret; or say --insecure on a network that you trust"));
}

std::string given_or_new_secret(const SecretOptions& options, const Environment& environment) {
  auto given = secret_unless_insecure(options, environment);
  return given ? *std::move(given) : make_secret();
}

void guard_secret() {
  // The whole process and not some pages: a secret is copied by parsers, sessions and OpenSSL.
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) throw_errno("prctl(PR_SET_DUMPABLE)");
}

}  // namespace lockstep
