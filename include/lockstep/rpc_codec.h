#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace at {
class Tensor;
}

namespace lockstep::rpc {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they lie in memory");

/// Memory that is sent without being looked at, and its owner. What is sent must not change until
/// the call is answered; what was received is the receiver's to write, unless the sender had made
/// it with Agent::shared_memory().
struct Blob {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> owner = nullptr;
};

/// The values of a call or of an answer: small ones in `bytes`, memory of its own in `blobs`.
struct Payload {
  std::string bytes;
  std::vector<Blob> blobs;
};

/// What a codec writes values with.
class Writer {
 public:
  explicit Writer(Payload& payload) : payload_(payload) {}

  void raw(const void* data, std::size_t bytes) {
    payload_.bytes.append(static_cast<const char*>(data), bytes);
  }
  template <typename Number>
  void number(Number value) {
    raw(&value, sizeof(value));
  }
  /// How many follow.
  void count(std::size_t value) { number(static_cast<std::uint64_t>(value)); }
  void blob(Blob blob) { payload_.blobs.push_back(std::move(blob)); }

 private:
  Payload& payload_;
};

/// Reads what a Writer wrote. Throws BadMessage, and allocates nothing, where the bytes do not go
/// as far as they say.
class Reader {
 public:
  explicit Reader(const Payload& payload) : payload_(payload), rest_(payload.bytes) {}

  std::string_view raw(std::size_t bytes);
  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, raw(sizeof(value)).data(), sizeof(value));
    return value;
  }
  /// How many follow, each of at least `bytes_each`.
  std::size_t count(std::size_t bytes_each);
  Blob blob();
  /// Throws BadMessage if there is more.
  void expect_end() const;
  [[noreturn]] static void fail(const std::string& why);

 private:
  const Payload& payload_;
  std::string_view rest_;
  std::size_t next_blob_ = 0;
};

/// How a type travels: `name()`, `write(Writer&, const T&)`, `read(Reader&)`. Names are compared
/// before a function is run. A type of the program's own has Fields, or a specialisation of this.
template <typename T>
struct Codec;

/// Makes a struct travel, field by field:
///
///     template <> struct lockstep::rpc::Fields<Sample> {
///       static constexpr const char* name = "Sample";
///       static auto of(auto& sample) { return std::tie(sample.reward, sample.state); }
///     };
template <typename T>
struct Fields;

template <typename T>
concept HasFields = requires(T& value) {
  Fields<T>::of(value);
  Fields<T>::name;
};

template <typename T>
requires std::is_arithmetic_v<T>
struct Codec<T> {
  static std::string name() {
    if constexpr (std::is_same_v<T, bool>) return "bool";
    const char* kind = std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u";
    return kind + std::to_string(8 * sizeof(T));
  }
  static void write(Writer& out, T value) {
    if constexpr (std::is_same_v<T, bool>) {
      out.number<std::uint8_t>(value);
    } else {
      out.number(value);
    }
  }
  static T read(Reader& in) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto value = in.number<std::uint8_t>();
      if (value > 1) Reader::fail("a bool is neither 0 nor 1");
      return value == 1;
    } else {
      return in.number<T>();
    }
  }
};

/// A value outside the enumerators arrives as it is.
template <typename T>
requires std::is_enum_v<T>
struct Codec<T> {
  using Number = std::underlying_type_t<T>;
  static std::string name() { return "enum:" + Codec<Number>::name(); }
  static void write(Writer& out, T value) { out.number(static_cast<Number>(value)); }
  static T read(Reader& in) { return static_cast<T>(in.number<Number>()); }
};

template <>
struct Codec<std::string> {
  static std::string name() { return "s"; }
  static void write(Writer& out, std::string_view value) {
    out.count(value.size());
    out.raw(value.data(), value.size());
  }
  static std::string read(Reader& in) { return std::string(in.raw(in.count(1))); }
};

template <>
struct Codec<Blob> {
  static std::string name() { return "blob"; }
  static void write(Writer& out, const Blob& value) { out.blob(value); }
  static Blob read(Reader& in) { return in.blob(); }
};

/// CPU tensors of every type with strided memory. A part of a larger tensor is copied together
/// first; what requires grad arrives without its graph.
template <>
struct Codec<at::Tensor> {
  static std::string name() { return "tensor"; }
  static void write(Writer& out, const at::Tensor& value);
  static at::Tensor read(Reader& in);
};

template <typename... Ts>
struct Codec<std::tuple<Ts...>> {
  static std::string name() {
    std::string list;
    ((list += (list.empty() ? "" : ",") + Codec<Ts>::name()), ...);
    return "(" + list + ")";
  }
  static void write(Writer& out, const std::tuple<Ts...>& value) {
    out.number<std::uint8_t>(sizeof...(Ts));  // so that nothing has no bytes at all
    std::apply([&](const Ts&... field) { (Codec<Ts>::write(out, field), ...); }, value);
  }
  static std::tuple<Ts...> read(Reader& in) {
    if (in.number<std::uint8_t>() != sizeof...(Ts)) Reader::fail("a tuple has another size");
    return std::tuple<Ts...>{Codec<Ts>::read(in)...};  // braces: from left to right
  }
};

template <typename First, typename Second>
struct Codec<std::pair<First, Second>> {
  using Tuple = std::tuple<First, Second>;
  static std::string name() { return Codec<Tuple>::name(); }
  static void write(Writer& out, const std::pair<First, Second>& value) {
    Codec<Tuple>::write(out, Tuple(value.first, value.second));
  }
  static std::pair<First, Second> read(Reader& in) {
    auto [first, second] = Codec<Tuple>::read(in);
    return {std::move(first), std::move(second)};
  }
};

template <typename T>
struct Codec<std::vector<T>> {
  static constexpr bool kBulk = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
  static std::string name() { return "[" + Codec<T>::name() + "]"; }
  static void write(Writer& out, const std::vector<T>& value) {
    out.count(value.size());
    if constexpr (kBulk) {
      out.raw(value.data(), value.size() * sizeof(T));
    } else {
      for (const T& element : value) {
        out.number<std::uint8_t>(0);  // an element may have no bytes: a blob
        Codec<T>::write(out, element);
      }
    }
  }
  static std::vector<T> read(Reader& in) {
    std::vector<T> result;
    if constexpr (kBulk) {
      const std::size_t count = in.count(sizeof(T));
      const std::string_view bytes = in.raw(count * sizeof(T));
      result.resize(count);
      if (count > 0) std::memcpy(result.data(), bytes.data(), bytes.size());
    } else {
      for (std::size_t left = in.count(1); left > 0; --left) {
        in.number<std::uint8_t>();
        result.push_back(Codec<T>::read(in));
      }
    }
    return result;
  }
};

template <typename T>
struct Codec<std::optional<T>> {
  static std::string name() { return Codec<T>::name() + "?"; }
  static void write(Writer& out, const std::optional<T>& value) {
    Codec<bool>::write(out, value.has_value());
    if (value) Codec<T>::write(out, *value);
  }
  static std::optional<T> read(Reader& in) {
    if (!Codec<bool>::read(in)) return std::nullopt;
    return Codec<T>::read(in);
  }
};

template <typename Key, typename Value>
struct Codec<std::map<Key, Value>> {
  using List = std::vector<std::pair<Key, Value>>;
  static std::string name() { return "{" + Codec<Key>::name() + ":" + Codec<Value>::name() + "}"; }
  static void write(Writer& out, const std::map<Key, Value>& value) {
    Codec<List>::write(out, List(value.begin(), value.end()));
  }
  static std::map<Key, Value> read(Reader& in) {
    std::map<Key, Value> result;
    for (auto& entry : Codec<List>::read(in)) result.insert(std::move(entry));
    return result;
  }
};

template <HasFields T>
struct Codec<T> {
  template <typename... Ts>
  static std::tuple<std::remove_cvref_t<Ts>...> values(const std::tuple<Ts...>&);
  using Tuple = decltype(values(Fields<T>::of(std::declval<T&>())));
  static std::string name() { return Fields<T>::name + Codec<Tuple>::name(); }
  static void write(Writer& out, const T& value) {
    Codec<Tuple>::write(out, Tuple(Fields<T>::of(value)));
  }
  static T read(Reader& in) {
    T result;
    Fields<T>::of(result) = Codec<Tuple>::read(in);
    return result;
  }
};

/// The type that an argument travels as: a literal as a string.
template <typename T>
using Travelling = std::conditional_t<std::is_convertible_v<std::decay_t<T>, const char*> ||
                                          std::is_same_v<std::decay_t<T>, std::string_view>,
                                      std::string, std::decay_t<T>>;

/// What a function takes and gives: "i64,[f32]->tensor".
template <typename Result, typename... Args>
std::string signature() {
  std::string text;
  ((text += text.empty() ? "" : ",", text += Codec<std::remove_cvref_t<Args>>::name()), ...);
  text += "->";
  if constexpr (std::is_void_v<Result>) {
    return text + "void";
  } else {
    return text + Codec<std::remove_cvref_t<Result>>::name();
  }
}

}  // namespace lockstep::rpc
