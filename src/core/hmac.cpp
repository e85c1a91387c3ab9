#include "core/hmac.h"

#include <dlfcn.h>
#include <sys/random.h>

#include <cerrno>
#include <initializer_list>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// OpenSSL's declarations, the same in every version since 1.0. Its headers are not needed to build.
struct Crypto {
  using Sha256 = const void* (*)();
  using Hmac = unsigned char* (*)(const void* algorithm, const void* key, int key_bytes,
                                  const unsigned char* data, std::size_t data_bytes,
                                  unsigned char* digest, unsigned int* digest_bytes);
  Sha256 sha256 = nullptr;
  Hmac hmac = nullptr;
};

Crypto load_crypto() {
  for (const char* name : {"libcrypto.so.3", "libcrypto.so", "libcrypto.so.1.1"}) {
    // Never closed: OpenSSL registers functions that run at exit.
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    const Crypto crypto{reinterpret_cast<Crypto::Sha256>(::dlsym(library, "EVP_sha256")),
                        reinterpret_cast<Crypto::Hmac>(::dlsym(library, "HMAC"))};
    if (crypto.sha256 != nullptr && crypto.hmac != nullptr) return crypto;
  }
  throw SystemError(
      "OpenSSL's libcrypto.so.3 cannot be loaded; nodes of a job prove with it that they know the "
      "job's secret. Install it (Debian and Ubuntu: apt-get install openssl), or, on a network "
      "where everyone may join the job, say --insecure");
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view data) {
  static const Crypto crypto = load_crypto();
  std::string digest(kHmacBytes, '\0');
  unsigned int written = 0;
  // A null pointer would mean "the key of the call before".
  const char* key_data = key.empty() ? "" : key.data();
  const auto* made = crypto.hmac(crypto.sha256(), key_data, static_cast<int>(key.size()),
                                 reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                                 reinterpret_cast<unsigned char*>(digest.data()), &written);
  if (made == nullptr || written != kHmacBytes) {
    throw SystemError(
        "OpenSSL could not compute an HMAC-SHA256; does its configuration forbid it?");
  }
  return digest;
}

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  // volatile: the compiler must not stop at the first difference.
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (one[i] ^ other[i]));
  }
  return difference == 0;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  std::size_t filled = 0;
  while (filled < count) {
    const ssize_t got = ::getrandom(bytes.data() + filled, count - filled, 0);
    if (got < 0 && errno != EINTR) throw_errno("getrandom");
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    hex.push_back(kDigits[static_cast<unsigned char>(byte) >> 4]);
    hex.push_back(kDigits[static_cast<unsigned char>(byte) & 0xf]);
  }
  return hex;
}

}  // namespace lockstep
