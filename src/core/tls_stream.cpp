#include "core/tls_stream.h"

#include <arpa/inet.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr const char* kIdentity = "lockstep";
constexpr std::size_t kMinKeyBytes = 16;
constexpr std::size_t kMaxKeyBytes = 64;

// OpenSSL's declarations and numbers, the same in every version since 1.1.1, which has TLS 1.3. Its
// headers are not needed to build.
constexpr int kTls13 = 0x0304;
constexpr int kSetMinProtocol = 123;  // SSL_CTRL_SET_MIN_PROTO_VERSION
constexpr int kWantRead = 2;          // SSL_ERROR_WANT_READ
constexpr int kZeroReturn = 6;        // SSL_ERROR_ZERO_RETURN: the peer has said that it ends
constexpr int kPending = 10;          // BIO_CTRL_PENDING
constexpr int kTls12 = 0x0303;
constexpr int kVerifyPeer = 1;     // SSL_VERIFY_PEER
constexpr int kPem = 1;            // SSL_FILETYPE_PEM
constexpr int kSetHostName = 55;   // SSL_CTRL_SET_TLSEXT_HOSTNAME
constexpr long kVerifiedWell = 0;  // X509_V_OK

using ClientKey = unsigned int (*)(void* ssl, const char* hint, char* identity,
                                   unsigned int max_identity, unsigned char* key,
                                   unsigned int max_key);
using ServerKey = unsigned int (*)(void* ssl, const char* identity, unsigned char* key,
                                   unsigned int max_key);

struct Library {
  const void* (*method)() = nullptr;
  void* (*new_context)(const void* method) = nullptr;
  void (*free_context)(void* context) = nullptr;
  long (*control)(void* context, int command, long number, void* pointer) = nullptr;
  int (*set_ciphers)(void* context, const char* names) = nullptr;
  int (*set_tickets)(void* context, std::size_t count) = nullptr;
  void (*set_client_key)(void* context, ClientKey callback) = nullptr;
  void (*set_server_key)(void* context, ServerKey callback) = nullptr;
  void* (*new_ssl)(void* context) = nullptr;
  void (*free_ssl)(void* ssl) = nullptr;
  int (*set_data)(void* ssl, int index, void* data) = nullptr;
  void* (*get_data)(const void* ssl, int index) = nullptr;
  void (*set_accept)(void* ssl) = nullptr;
  void (*set_connect)(void* ssl) = nullptr;
  void (*set_bio)(void* ssl, void* read, void* write) = nullptr;
  int (*handshake)(void* ssl) = nullptr;
  int (*is_finished)(const void* ssl) = nullptr;
  int (*read)(void* ssl, void* buffer, int size) = nullptr;
  int (*write)(void* ssl, const void* buffer, int size) = nullptr;
  int (*error)(const void* ssl, int result) = nullptr;
  const void* (*memory)() = nullptr;
  void* (*new_bio)(const void* kind) = nullptr;
  int (*read_bio)(void* bio, void* buffer, int size) = nullptr;
  int (*write_bio)(void* bio, const void* buffer, int size) = nullptr;
  long (*control_bio)(void* bio, int command, long number, void* pointer) = nullptr;
  unsigned long (*next_error)() = nullptr;
  const char* (*reason)(unsigned long error) = nullptr;
  void (*clear_errors)() = nullptr;
  // For certificates.
  int (*load_authorities)(void* context, const char* file, const char* folder) = nullptr;
  int (*load_usual_authorities)(void* context) = nullptr;
  void (*set_verify)(void* context, int mode, void* callback) = nullptr;
  int (*use_certificate)(void* context, const char* file) = nullptr;
  int (*use_key)(void* context, const char* file, int kind) = nullptr;
  long (*control_ssl)(void* ssl, int command, long number, void* pointer) = nullptr;
  int (*set_host)(void* ssl, const char* name) = nullptr;
  void* (*parameters)(void* ssl) = nullptr;
  int (*set_address)(void* parameters, const char* text) = nullptr;
  long (*verify_result)(const void* ssl) = nullptr;
  const char* (*verify_reason)(long result) = nullptr;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_for_certificates(void* handle, Library& ssl) {
  return find(handle, "SSL_CTX_load_verify_locations", ssl.load_authorities) &&
         find(handle, "SSL_CTX_set_default_verify_paths", ssl.load_usual_authorities) &&
         find(handle, "SSL_CTX_set_verify", ssl.set_verify) &&
         find(handle, "SSL_CTX_use_certificate_chain_file", ssl.use_certificate) &&
         find(handle, "SSL_CTX_use_PrivateKey_file", ssl.use_key) &&
         find(handle, "SSL_ctrl", ssl.control_ssl) && find(handle, "SSL_set1_host", ssl.set_host) &&
         find(handle, "SSL_get0_param", ssl.parameters) &&
         find(handle, "X509_VERIFY_PARAM_set1_ip_asc", ssl.set_address) &&
         find(handle, "SSL_get_verify_result", ssl.verify_result) &&
         find(handle, "X509_verify_cert_error_string", ssl.verify_reason);
}

bool find_all(void* handle, Library& ssl) {
  return find_for_certificates(handle, ssl) && find(handle, "TLS_method", ssl.method) &&
         find(handle, "SSL_CTX_new", ssl.new_context) &&
         find(handle, "SSL_CTX_free", ssl.free_context) &&
         find(handle, "SSL_CTX_ctrl", ssl.control) &&
         find(handle, "SSL_CTX_set_ciphersuites", ssl.set_ciphers) &&
         find(handle, "SSL_CTX_set_num_tickets", ssl.set_tickets) &&
         find(handle, "SSL_CTX_set_psk_client_callback", ssl.set_client_key) &&
         find(handle, "SSL_CTX_set_psk_server_callback", ssl.set_server_key) &&
         find(handle, "SSL_new", ssl.new_ssl) && find(handle, "SSL_free", ssl.free_ssl) &&
         find(handle, "SSL_set_ex_data", ssl.set_data) &&
         find(handle, "SSL_get_ex_data", ssl.get_data) &&
         find(handle, "SSL_set_accept_state", ssl.set_accept) &&
         find(handle, "SSL_set_connect_state", ssl.set_connect) &&
         find(handle, "SSL_set_bio", ssl.set_bio) &&
         find(handle, "SSL_do_handshake", ssl.handshake) &&
         find(handle, "SSL_is_init_finished", ssl.is_finished) &&
         find(handle, "SSL_read", ssl.read) && find(handle, "SSL_write", ssl.write) &&
         find(handle, "SSL_get_error", ssl.error) && find(handle, "BIO_s_mem", ssl.memory) &&
         find(handle, "BIO_new", ssl.new_bio) && find(handle, "BIO_read", ssl.read_bio) &&
         find(handle, "BIO_write", ssl.write_bio) && find(handle, "BIO_ctrl", ssl.control_bio) &&
         find(handle, "ERR_get_error", ssl.next_error) &&
         find(handle, "ERR_reason_error_string", ssl.reason) &&
         find(handle, "ERR_clear_error", ssl.clear_errors);
}

const Library& library() {
  static const Library loaded = [] {
    for (const char* name : {"libssl.so.3", "libssl.so", "libssl.so.1.1"}) {
      // Never closed: OpenSSL registers functions that run at exit.
      void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      Library ssl;
      if (handle != nullptr && find_all(handle, ssl)) return ssl;
    }
    throw SystemError(
        "OpenSSL's libssl.so.3 cannot be loaded; --tls encrypts the links between nodes with it, "
        "and etcd over https needs it. Install it (Debian and Ubuntu: apt-get install openssl), or "
        "leave --tls out on all nodes");
  }();
  return loaded;
}

// The connection's key is at its index 0, which OpenSSL leaves to programs.
unsigned int put_key(void* ssl, unsigned char* key, unsigned int max_key) {
  const auto* own = static_cast<const std::string*>(library().get_data(ssl, 0));
  if (own == nullptr || own->size() > max_key) return 0;
  std::memcpy(key, own->data(), own->size());
  return static_cast<unsigned int>(own->size());
}

unsigned int key_of_client(void* ssl, const char*, char* identity, unsigned int max_identity,
                           unsigned char* key, unsigned int max_key) {
  if (std::strlen(kIdentity) + 1 > max_identity) return 0;
  std::memcpy(identity, kIdentity, std::strlen(kIdentity) + 1);
  return put_key(ssl, key, max_key);
}

unsigned int key_of_server(void* ssl, const char* identity, unsigned char* key,
                           unsigned int max_key) {
  if (identity == nullptr || std::strcmp(identity, kIdentity) != 0) return 0;
  return put_key(ssl, key, max_key);
}

// One for all connections of the process.
void* context() {
  static void* const shared = [] {
    const Library& ssl = library();
    void* made = ssl.new_context(ssl.method());
    if (made == nullptr || ssl.control(made, kSetMinProtocol, kTls13, nullptr) != 1 ||
        ssl.set_ciphers(made, "TLS_AES_128_GCM_SHA256") != 1) {
      throw SystemError("OpenSSL cannot do TLS 1.3; does its configuration forbid it?");
    }
    ssl.set_tickets(made, 0);  // a session is never taken up again
    ssl.set_client_key(made, key_of_client);
    ssl.set_server_key(made, key_of_server);
    return made;
  }();
  return shared;
}

std::string last_reason() {
  const Library& ssl = library();
  std::string text = "unknown";
  while (const unsigned long error = ssl.next_error()) {
    if (const char* reason = ssl.reason(error)) text = reason;
  }
  return text;
}

}  // namespace

TlsTrust::TlsTrust(const Options& options) {
  const Library& ssl = library();
  context_ = ssl.new_context(ssl.method());
  if (context_ == nullptr || ssl.control(context_, kSetMinProtocol, kTls12, nullptr) != 1) {
    throw SystemError("OpenSSL cannot do TLS 1.2; does its configuration forbid it?");
  }
  ssl.set_verify(context_, kVerifyPeer, nullptr);
  ssl.clear_errors();
  const auto check = [this](int result, const char* what, const std::string& file) {
    if (result == 1) return;
    const std::string reason = last_reason();
    library().free_context(context_);
    throw InvalidArgument(concat("the ", what, " in '", file, "' cannot be used: ", reason));
  };
  if (options.authorities.empty()) {
    check(ssl.load_usual_authorities(context_), "system's authorities", "OpenSSL's own folder");
  } else {
    check(ssl.load_authorities(context_, options.authorities.c_str(), nullptr),
          "certificates of authorities", options.authorities);
  }
  if (options.certificate.empty()) return;
  check(ssl.use_certificate(context_, options.certificate.c_str()), "certificate",
        options.certificate);
  check(ssl.use_key(context_, options.key.c_str(), kPem), "key", options.key);
}

TlsTrust::~TlsTrust() {
  library().free_context(context_);
}

struct TlsStream::Connection {
  std::string key;
  void* ssl = nullptr;
  void* input = nullptr;   // the connection's own
  void* output = nullptr;  // likewise
  std::string waiting;     // text, until the handshake is over

  ~Connection() {
    if (ssl != nullptr) library().free_ssl(ssl);
    std::ranges::fill(key, '\0');
  }
  [[noreturn]] void fail() const {
    const std::string reason = last_reason();
    const long verified = library().verify_result(ssl);
    if (key.empty() && verified != kVerifiedWell) {
      throw InvalidArgument(concat("TLS: ", reason, ": ", library().verify_reason(verified)));
    }
    throw InvalidArgument(concat("TLS: ", reason));
  }
  bool established() const { return library().is_finished(ssl) == 1; }
  void shake_hands() {
    library().clear_errors();
    const int result = library().handshake(ssl);
    if (result != 1 && library().error(ssl, result) != kWantRead) fail();
  }
  void write(std::string_view text) {
    // Into memory, so that it takes all of it.
    while (!text.empty()) {
      library().clear_errors();
      const int piece = static_cast<int>(std::min<std::size_t>(text.size(), 1 << 20));
      const int written = library().write(ssl, text.data(), piece);
      if (written <= 0) fail();
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }
};

TlsStream::TlsStream(Role role, std::string_view key)
    : connection_(std::make_unique<Connection>()) {
  LOCKSTEP_CHECK(key.size() >= kMinKeyBytes && key.size() <= kMaxKeyBytes, key.size());
  connection_->key = key;
  start(context(), role);
  connection_->shake_hands();
}

TlsStream::TlsStream(const TlsTrust& trust, const std::string& server)
    : connection_(std::make_unique<Connection>()) {
  start(trust.context_, Role::client);
  const Library& ssl = library();
  void* const made = connection_->ssl;
  std::array<unsigned char, sizeof(in6_addr)> address;
  const bool is_address = ::inet_pton(AF_INET, server.c_str(), address.data()) == 1 ||
                          ::inet_pton(AF_INET6, server.c_str(), address.data()) == 1;
  std::string name = server;  // the macro of that name takes it so
  const bool is_set = is_address ? ssl.set_address(ssl.parameters(made), server.c_str()) == 1
                                 : ssl.set_host(made, server.c_str()) == 1 &&
                                       ssl.control_ssl(made, kSetHostName, 0, name.data()) == 1;
  if (!is_set) throw SystemError(concat("OpenSSL takes no server's name '", server, "'"));
  connection_->shake_hands();
}

void TlsStream::start(void* context, Role role) {
  const Library& ssl = library();
  Connection& made = *connection_;
  made.ssl = ssl.new_ssl(context);
  made.input = ssl.new_bio(ssl.memory());
  made.output = ssl.new_bio(ssl.memory());
  if (made.ssl == nullptr || made.input == nullptr || made.output == nullptr ||
      ssl.set_data(made.ssl, 0, &made.key) != 1) {
    throw SystemError("OpenSSL is out of memory");
  }
  ssl.set_bio(made.ssl, made.input, made.output);
  role == Role::server ? ssl.set_accept(made.ssl) : ssl.set_connect(made.ssl);
}

TlsStream::~TlsStream() = default;
TlsStream::TlsStream(TlsStream&& other) noexcept = default;
TlsStream& TlsStream::operator=(TlsStream&& other) noexcept = default;

bool TlsStream::established() const {
  return connection_->established();
}

std::string TlsStream::receive(std::string_view bytes) {
  const Library& ssl = library();
  Connection& connection = *connection_;
  std::string text;
  std::array<char, 16 << 10> buffer;
  while (!bytes.empty()) {
    const int taken = ssl.write_bio(connection.input, bytes.data(),
                                    static_cast<int>(std::min<std::size_t>(bytes.size(), 1 << 20)));
    if (taken <= 0) connection.fail();
    bytes.remove_prefix(static_cast<std::size_t>(taken));
    if (!connection.established()) connection.shake_hands();
    if (!connection.established()) continue;
    if (!connection.waiting.empty()) {
      connection.write(connection.waiting);
      connection.waiting.clear();
    }
    while (true) {
      ssl.clear_errors();
      const int got = ssl.read(connection.ssl, buffer.data(), static_cast<int>(buffer.size()));
      if (got > 0) {
        text.append(buffer.data(), static_cast<std::size_t>(got));
        continue;
      }
      const int error = ssl.error(connection.ssl, got);
      if (error != kWantRead && error != kZeroReturn) connection.fail();
      break;
    }
  }
  return text;
}

void TlsStream::send(std::string_view text) {
  if (connection_->established()) {
    connection_->write(text);
  } else {
    connection_->waiting += text;
  }
}

std::string TlsStream::take_output() {
  const Library& ssl = library();
  const long pending = ssl.control_bio(connection_->output, kPending, 0, nullptr);
  if (pending <= 0) return "";
  std::string bytes(static_cast<std::size_t>(pending), '\0');
  const int got = ssl.read_bio(connection_->output, bytes.data(), static_cast<int>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(std::max(got, 0)));
  return bytes;
}

}  // namespace lockstep
