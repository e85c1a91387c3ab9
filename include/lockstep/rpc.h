#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/rpc_codec.h"
#include "lockstep/rpc_error.h"
#include "lockstep/rpc_future.h"

namespace lockstep {
class Store;
class World;
}  // namespace lockstep

namespace lockstep::rpc {

/// Where agents find each other. Thread-safe.
class Directory {
 public:
  virtual ~Directory() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> find(const std::string& key) = 0;
  /// Sets what is not there yet; returns what is there then, the same for all.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
};

/// Files of a folder that all agents see and others cannot write.
std::shared_ptr<Directory> directory_in_folder(const std::string& path);
/// Keys of a store, under a prefix.
std::shared_ptr<Directory> directory_in_store(const Store& store, const std::string& prefix);

class Agent;

struct AgentOptions {
  /// By which others call it: letters, digits, '_', '-' and '.'. Empty, with a World:
  /// "worker<rank>".
  std::string name = {};
  /// Serves what others may call, before they can find the agent. What is served later is not there
  /// for who calls earlier.
  std::function<void(Agent&)> setup = {};
  int threads = 4;                                              // that run what is called
  std::chrono::milliseconds timeout{std::chrono::seconds(60)};  // of calls that name none
  std::size_t max_message_bytes = std::size_t{4} << 30;         // values of one call or answer
  /// Calls that one peer may have open here at a time. Its next call() waits for one to end.
  int max_calls = 256;
  bool share_memory = true;  // with peers of this machine; LOCKSTEP_SHM=0 forbids it, too

  /// Address that peers of other machines connect to, "10.0.0.2"; empty: only this machine's can.
  /// With a World it is chosen: none on one machine, otherwise the address of the interface that
  /// GLOO_SOCKET_IFNAME names or that leads to MASTER_ADDR.
  std::string address = {};
  /// How bytes between machines are protected, after both ends have proven that they know the
  /// secret. The same on all agents.
  enum class Protection {
    sealed,     // an HMAC on each frame: changes are noticed
    encrypted,  // TLS 1.3 as well: nobody can read it
    handshake,  // nothing more: fastest, for networks that others cannot reach
  };
  Protection protection = Protection::sealed;
  /// That all agents share, 16 random bytes or more. Empty: the first agent makes one and leaves it
  /// in the directory, so that whoever can read that can call.
  std::string secret = {};
};

/// Whom to call, what, and how long to wait for the answer (zero: AgentOptions::timeout).
struct Call {
  std::string peer;
  std::string function;
  std::chrono::milliseconds timeout{0};
};

/// Who calls. A function that takes a `const Caller&` first is told; callers do not pass it.
struct Caller {
  std::string name;
};

namespace detail {

using Handler = std::function<void(const Caller&, Reader&, Writer&)>;
using Method = std::function<void(void* object, const Caller&, Reader&, Writer&)>;

struct ServedFunction {
  std::string signature;
  Handler run;
};

struct ServedMethod {
  std::string signature;
  Method run;
};

struct ServedClass {
  std::string signature;  // of its constructor
  std::function<std::shared_ptr<void>(const Caller&, Reader&)> make;
  std::map<std::string, ServedMethod> methods;
  bool one_at_a_time = true;
};

/// An object of another agent, and the connection that it is lent to.
class RemoteObject;

class AgentCore;

/// Parameter lists, of which a leading Caller is no argument.
template <typename... Args>
struct Parameters {
  static constexpr bool kWantsCaller = false;
  using Values = std::tuple<std::remove_cvref_t<Args>...>;
  template <typename Result>
  static std::string signature_to() {
    return signature<Result, Args...>();
  }
};
template <typename... Args>
struct Parameters<const Caller&, Args...> : Parameters<Args...> {
  static constexpr bool kWantsCaller = true;
};

// Reads the arguments, calls, writes the result.
template <typename Result, typename List, typename Function>
void apply(Function&& function, const Caller& caller, Reader& in, Writer& out) {
  auto values = [&]<typename... Ts>(std::type_identity<std::tuple<Ts...>>) {
    return std::tuple<Ts...>{Codec<Ts>::read(in)...};
  }(std::type_identity<typename List::Values>{});
  in.expect_end();
  const auto call = [&](auto&... arguments) -> decltype(auto) {
    if constexpr (List::kWantsCaller) {
      return function(caller, std::move(arguments)...);
    } else {
      return function(std::move(arguments)...);
    }
  };
  if constexpr (std::is_void_v<Result>) {
    std::apply(call, values);
  } else {
    Codec<std::remove_cvref_t<Result>>::write(out, std::apply(call, values));
  }
}

template <typename StdFunction>
struct CallableOf;
template <typename Result, typename... Args>
struct CallableOf<std::function<Result(Args...)>> {
  using List = Parameters<Args...>;
  template <typename Function>
  static ServedFunction serve(Function function) {
    return {.signature = List::template signature_to<Result>(),
            .run = [function = std::move(function)](const Caller& caller, Reader& in,
                                                    Writer& out) mutable {
              apply<Result, List>(function, caller, in, out);
            }};
  }
  template <typename Object, typename Pointer>
  static ServedMethod serve_method(Pointer pointer) {
    return {.signature = List::template signature_to<Result>(),
            .run = [pointer](void* object, const Caller& caller, Reader& in, Writer& out) {
              const auto call = [&](auto&&... arguments) -> decltype(auto) {
                return (static_cast<Object*>(object)->*pointer)(
                    std::forward<decltype(arguments)>(arguments)...);
              };
              apply<Result, List>(call, caller, in, out);
            }};
  }
};
template <typename Function>
using Callable = CallableOf<decltype(std::function{std::declval<Function>()})>;
template <typename Object, typename Result, typename... Args>
std::function<Result(Args...)> plain(Result (Object::*)(Args...));
template <typename Object, typename Result, typename... Args>
std::function<Result(Args...)> plain(Result (Object::*)(Args...) const);

template <typename... Args>
Payload pack(const Args&... arguments) {
  Payload payload;
  [[maybe_unused]] Writer out(payload);
  (Codec<Travelling<Args>>::write(out, arguments), ...);
  return payload;
}

template <typename Result>
Future<Result> typed(std::shared_ptr<CallState> state) {
  auto value = [state]() -> Result {
    if constexpr (!std::is_void_v<Result>) {
      Reader in(state->answer());
      Result result = Codec<Result>::read(in);
      in.expect_end();
      return result;
    }
  };
  return Future<Result>(std::move(state), std::move(value));
}

}  // namespace detail

/// What others may do with the objects of a class; see Agent::serve_class().
template <typename Object>
class ClassBuilder {
 public:
  template <typename... Args>
  ClassBuilder& constructor() {
    served_.signature = signature<void, Args...>();
    served_.make = [](const Caller&, Reader& in) -> std::shared_ptr<void> {
      std::tuple<std::remove_cvref_t<Args>...> values{
          Codec<std::remove_cvref_t<Args>>::read(in)...};
      in.expect_end();
      return std::apply([](auto&... each) { return std::make_shared<Object>(std::move(each)...); },
                        values);
    };
    return *this;
  }
  template <typename Pointer>
  ClassBuilder& method(const std::string& name, Pointer pointer) {
    using Plain = decltype(detail::plain(pointer));
    served_.methods[name] =
        detail::Callable<Plain>::template serve_method<Object, Pointer>(pointer);
    return *this;
  }
  /// Methods of one object run at the same time; otherwise one after another.
  ClassBuilder& concurrent() {
    served_.one_at_a_time = false;
    return *this;
  }

 private:
  friend class Agent;
  detail::ServedClass served_;
};

/// An object that lives in another agent. Copies refer to the same one. It is destroyed when the
/// last of them is, and when this process ends or its connection to that agent does: a call then
/// fails with PeerDied, and the object is not made again. It cannot be passed on to others.
template <typename Object>
class RemoteRef {
 public:
  explicit RemoteRef(std::shared_ptr<detail::RemoteObject> object) : object_(std::move(object)) {}

  template <typename Result = void, typename... Args>
  Future<Result> call(const std::string& method, const Args&... arguments) const {
    return call_within<Result>(std::chrono::milliseconds(0), method, arguments...);
  }
  template <typename Result = void, typename... Args>
  Future<Result> call_within(std::chrono::milliseconds timeout, const std::string& method,
                             const Args&... arguments) const;

 private:
  std::shared_ptr<detail::RemoteObject> object_;
};

/// Calls functions of other processes, and serves functions to them. Thread-safe.
///
///     rpc::Agent agent(world, {.name = world.rank() == 0 ? "ps" : "trainer0"});
///     agent.serve("add", [](at::Tensor a, at::Tensor b) { return a + b; });
///     rpc::Future<at::Tensor> sum = agent.call<at::Tensor>({"ps", "add", 2s}, a, b);
///     sum.get();
///     agent.shutdown();
///
/// Functions run on `threads` threads, in any order; so do those that wait for calls of their own.
/// Calls of one agent to another may be answered in any order, too.
class Agent {
 public:
  /// Others find it under options.name from now on. All ranks make as many agents of a World: the
  /// first of a rank meets the first ones of the others, the second the second ones.
  explicit Agent(World& world, AgentOptions options = {});
  Agent(std::shared_ptr<Directory> directory, AgentOptions options);
  ~Agent();  // close()
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const std::string& name() const;

  /// The types of a call are those of the function. An exception that it throws is thrown by the
  /// caller's get(), as a RemoteException.
  template <typename Function>
  void serve(const std::string& name, Function function) {
    serve_function(name, detail::Callable<Function>::serve(std::move(function)));
  }

  /// agent.serve_class<Counter>("Counter", [](auto& c) {
  ///   c.template constructor<std::int64_t>().method("add", &Counter::add); });
  template <typename Object, typename Describe>
  void serve_class(const std::string& name, Describe describe) {
    ClassBuilder<Object> builder;
    if constexpr (std::is_default_constructible_v<Object>) builder.template constructor<>();
    describe(builder);
    add_class(name, std::move(builder.served_));
  }

  /// Returns once the call is on its way: the first one to a peer waits for it to appear, and one
  /// beyond the peer's max_calls for another to end, no longer than the call's time. Failures are
  /// in the future.
  template <typename Result = void, typename... Args>
  Future<Result> call(const Call& call, const Args&... arguments) {
    return detail::typed<Result>(
        start(call, signature<Result, Travelling<Args>...>(), detail::pack(arguments...)));
  }

  /// Makes an object of a class that `call.peer` serves as `call.function`, and waits for it.
  template <typename Object, typename... Args>
  RemoteRef<Object> create(const Call& call, const Args&... arguments) {
    return RemoteRef<Object>(
        make_object(call, signature<void, Travelling<Args>...>(), detail::pack(arguments...)));
  }

  /// Memory that peers of this machine get without a copy. It is shared: what is written to it
  /// after it was sent, they see. Where no memory can be shared it is ordinary memory.
  Blob shared_memory(std::size_t bytes);

  /// Waits until all agents of the World have called it, serving them in the meantime, then closes.
  /// Throws Timeout naming the ranks that did not; it is closed then, too. Without a World:
  /// close().
  void shutdown(std::chrono::milliseconds timeout = std::chrono::seconds(60));

  /// Ends all connections: calls to this agent fail with ShutDown, and so do its own that are open.
  /// Waits for functions that run, and until their answers have left or nothing moves for 3 s.
  void close();

 private:
  void serve_function(const std::string& name, detail::ServedFunction function);
  void add_class(const std::string& name, detail::ServedClass served);
  std::shared_ptr<detail::CallState> start(const Call& call, std::string signature,
                                           Payload payload);
  std::shared_ptr<detail::RemoteObject> make_object(const Call& call, std::string signature,
                                                    Payload payload);

  std::unique_ptr<detail::AgentCore> core_;
};

/// A tensor with these values, in Agent::shared_memory(): peers of this machine get it, and parts
/// of it that are contiguous, without a copy. What is written to it later, they see.
at::Tensor shared_tensor(Agent& agent, const at::Tensor& values);

namespace detail {
std::shared_ptr<CallState> call_object(const std::shared_ptr<RemoteObject>& object,
                                       std::chrono::milliseconds timeout, const std::string& method,
                                       std::string signature, Payload payload);
}  // namespace detail

template <typename Object>
template <typename Result, typename... Args>
Future<Result> RemoteRef<Object>::call_within(std::chrono::milliseconds timeout,
                                              const std::string& method,
                                              const Args&... arguments) const {
  return detail::typed<Result>(detail::call_object(object_, timeout, method,
                                                   signature<Result, Travelling<Args>...>(),
                                                   detail::pack(arguments...)));
}

}  // namespace lockstep::rpc
